"""One shard of a table without a vocabulary, or of several that are stacked.

shard_directory.py  finds and makes the rows of ids
known_rows.py       ids that have rows, and rows that have no ids
row_maker.py        makes rows, and room for them
rules.py            rules that all shards of a table have in common
found.py            answers of a directory, and who asks
shard_parts.py      the variables of the shard
hash_index.py       rows by id, for each of the tables that are stacked
free_rows.py        free rows of each cell
tallies.py          numbers that a directory counts
admitter.py         decides which ids get rows
counting_filter.py  counts lookups of ids that have no row yet
waiting_counts.py   counts them exactly
evictor.py          selects rows that lose their ids
"""
