"""Tables without a vocabulary, whose rows belong to ids of any value.

dynamic_table.py    rows, their records, and the directories of all shards
find_functions.py   functions that find the rows of a shard
past_directories.py directories of shards that are cut otherwise by now
shard/              one shard: its directory, on the parameter server
policies.py         pure: rules by which ids get rows, and lose them
row_space.py        pure: the rows of each hash bucket
id_hashing.py       buckets of ids, and random numbers that depend on them
string_ids.py       strings as ids
initial_rows.py     the first row of an id
blocks_of_rows.py   the initial value of the table
contents.py         contents of the table, for the program
"""
