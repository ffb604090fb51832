"""What a parameter is, where it lives, and which rows are in which shard.

layout.py             pure: the contiguous row ranges of the shards of a table
partitioners.py       pure: into how many shards a variable is cut
placement.py          pure: which ps takes the next bytes
initialization.py     fills shards where they live, block by block
random_blocks.py      any block of rows of a random initializer's full value
late_bound.py         a variable whose handle is looked up at call time
remote_variable.py    a whole variable on one ps
sharded_variable.py   a table cut over several ps, one value to the user
row_gather.py         looks up rows of shards, each distinct id once
chief_reads.py        reads that go on when the cluster changes under them
views.py              lets unmodified optimizers see only rows, or one shard
tensor_protocol.py    what both kinds need to pass for a tensor
worker_resident.py    one object per worker, rebuilt when the worker returns
worker_local.py       metric states and seeds: one copy per lane
worker_tables.py      lookup tables: one copy per worker
testing.py            variables on this process's own device, for tests
"""
