"""Checkpoints that parameter servers write, and what is made of them.

checkpoint.py           tfps.Checkpoint: writes and reads one checkpoint
checkpoint_manager.py   tfps.CheckpointManager: many, in a folder
retention.py            pure: which checkpoints of a folder are kept
checkpoint_entries.py   which entry belongs to which living object
mismatch.py             pure: in what a checkpoint and a program differ
parts.py                what each ps writes and reads
part_files.py           writes and reads them, all ps at the same time
shared_folder.py        whether tasks see the chief's files
committing.py           makes a checkpoint appear, whole or not at all
untracked_state.py      Keras's metrics and seeds, for checkpoints
failover.py             brings back what lost parameter servers held
"""
