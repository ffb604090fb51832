"""Updates of variables where they live.

update_part.py    the share of one variable, on one ps, in an update
update_lock.py    lets one update of a variable at a time run on its ps
views.py          lets unmodified optimizers see only rows, or one shard
remote_queues.py  queues on a ps, which functions find when they are called
"""
