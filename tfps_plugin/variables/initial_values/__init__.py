"""Initial values, made where the variables live.

initialization.py       fills shards where they live, block by block
random_blocks.py        any block of rows of a random initializer's full value
stacked_initializer.py  initial values of tables that lie behind one another
partitioned_rows.py     initializers that are asked for some rows alone
"""
