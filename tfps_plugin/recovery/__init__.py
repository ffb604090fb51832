"""Checkpoints that parameter servers write, and what is made of them.

checkpoint.py           tfps.Checkpoint: writes and reads one checkpoint
checkpoint_manager.py   tfps.CheckpointManager: many, in a folder
checkpoint_folder.py    the folder: what is there, what is deleted
retention.py            pure: which checkpoints of a folder are kept
chain.py                pure: a full checkpoint and the increments behind it
increments.py           what an increment needs, and restoring it
merging.py              makes a full checkpoint of an increment
row_marks.py            tells which rows of tables have changed
change_files.py         writes those rows, and puts them back
snapshot.py             what each ps holds at one moment, to be written
checkpoint_entries.py   which entry belongs to which living object
mismatch.py             pure: in what a checkpoint and a program differ
parts.py                what each ps writes and reads
part_files.py           writes and reads them, all ps at the same time
shared_folder.py        whether tasks see the chief's files
committing.py           makes a checkpoint appear, whole or not at all
untracked_state.py      Keras's metrics and seeds, for checkpoints
standby_copies.py       a second copy of every shard, on the next ps
standby.py              keeps them up to date while training goes on
failover.py             brings back what lost parameter servers held
"""
