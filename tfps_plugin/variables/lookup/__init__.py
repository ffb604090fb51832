"""Lookups of rows, and the gradients of lookups.

table.py              a variable whose rows are looked up, for lookups
row_lookup.py         looks up rows of a variable, each distinct id once
shard_order.py        ids grouped by the shards that hold them
distinct_rows.py      slices in which every id occurs once
graph_checks.py       checks of values known only when a function runs
dense_reads.py        warns of steps that move a whole sharded table
vectorized_lookup.py  looks up rows in vectorized functions
row_counts.py         numbers of rows that lookups ask for, by shard
row_cache.py          copies of the most looked-up rows, on workers that train
cache_places.py       decides which rows a cache has, and which it takes in
present_rows.py       rows as the newest optimizer step has left them
"""
