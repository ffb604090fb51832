"""Lookups of rows, and the gradients of lookups.

row_lookup.py         looks up rows of a variable, each distinct id once
row_gather.py         splits ids by shard, gathers rows where they are
joint_lookup.py       looks up rows of several tables, one exchange with a ps
shard_order.py        distinct ids in the order of the shards that hold them
distinct_rows.py      slices in which every id occurs once
segment_sums.py       sums of rows that belong together
repeated_rows.py      rows where they are asked for, each fetched once
graph_checks.py       checks of values known only when a function runs
dense_reads.py        warns of steps that move a whole sharded table
vectorized_lookup.py  looks up rows in functions that are vectorized
present_rows.py       rows as the newest optimizer step has left them
"""
