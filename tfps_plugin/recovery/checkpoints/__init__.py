"""Checkpoints: written, found, read.

checkpoint.py          tfps.Checkpoint: writes and reads one checkpoint
checkpoint_manager.py  tfps.CheckpointManager: many, in a folder
checkpoint_folder.py   the folder: what is there, what is deleted
retention.py           pure: which checkpoints of a folder are kept
checkpoint_entries.py  which entry belongs to which living object
mismatch.py            pure: in what a checkpoint and a program differ
committing.py          makes a checkpoint appear, whole or not at all
untracked_state.py     Keras's metrics and seeds, for checkpoints
shared_folder.py       whether tasks see the chief's files
part_files.py          writes and reads them, all ps at the same time
parts.py               what each ps writes and reads
snapshot.py            what each ps holds at one moment, to be written
"""
