"""Initial values, made where the variables live.

initialization.py       fills shards where they live, block by block
random_blocks.py        any block of rows of a random initializer's full value
stacked_initializer.py  initial values of several tables stacked in one variable
partitioned_rows.py     initializers that are asked for some rows only
"""
