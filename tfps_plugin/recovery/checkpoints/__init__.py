"""Checkpoints: writing, finding and reading them.

checkpoint.py          `tfps.Checkpoint`: writes and reads one checkpoint
checkpoint_manager.py  `tfps.CheckpointManager`: the checkpoints of a folder
checkpoint_writer.py   the thread that writes them, and its failures
checkpoint_source.py   the newest readable one; values for replaced ps
checkpoint_folder.py   the folder: lists, names and deletes checkpoints
retention.py           pure: selects the checkpoints that a folder keeps
snapshot.py            the values of one checkpoint, until they are written
checkpoint_entries.py  matches the entries of a checkpoint with objects
mismatch.py            pure: describes how a checkpoint and a program differ
committing.py          publishes a checkpoint atomically
untracked_state.py     metrics and seeds of Keras that TensorFlow misses
shared_folder.py       checks that tasks see the chief's files
part_files.py          writes and reads files, on all ps at the same time
parts.py               the shards of variables that each ps writes and reads
"""
