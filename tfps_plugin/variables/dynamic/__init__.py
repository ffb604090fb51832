"""Tables without a vocabulary, whose rows belong to ids of any value.

dynamic_table.py    rows, their records, and the directories of all shards
table_variables.py  the variables of the table, and the parts of each shard
found_order.py      rows of all shards that were found by ids
held_gradients.py   gradients of rows that are held back for several steps
lookups_of_steps.py lookups of the steps that are traced
find_functions.py   functions that find the rows of a shard
whole_functions.py  functions that stay whole inside of others
ids/                ids, their hashes, and strings as ids
directory_places.py where its directories are, to free or to outdate them
shard/              one shard: its directory, on the parameter server
policies.py         pure: rules by which ids get rows, and lose them
row_space.py        pure: the rows of each hash bucket
cells.py            the rows of one table in one hash bucket
initial_rows.py     the first row of an id
blocks_of_rows.py   the initial value of the table
contents.py         contents of the table, for the program
"""
