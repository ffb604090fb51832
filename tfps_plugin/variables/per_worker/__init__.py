"""Resources of which every worker or lane has its own.

worker_local.py         metric states: one copy per lane, merged when read
worker_local_handle.py  a resource of which every worker or lane has its own
worker_resident.py      one object per worker, rebuilt when the worker returns
worker_index.py         the index of the worker that runs a function
worker_seeds.py         seed generators: every lane draws its own sequence
worker_tables.py        lookup tables: one copy per worker
lane_copies.py          copies of a number, one for each lane
lane_tallies.py         the sums that lanes have added to a number
per_worker_variable.py  a variable that each worker has for itself
"""
