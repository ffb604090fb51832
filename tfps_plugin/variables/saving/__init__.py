"""Sharded variables in files.

saved_form.py    a table in TensorFlow's checkpoints and SavedModels
shard_reader.py  reads all shards of a table as one value
shard_writer.py  assigns all shards of a table from one value
row_blocks.py    blocks of rows that are read or written in one message
apart.py         leaves out of checkpoints what ps write themselves
"""
