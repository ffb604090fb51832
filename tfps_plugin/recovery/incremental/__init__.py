"""Incremental checkpoints: they hold only the rows that have changed.

chain.py         pure: a full checkpoint and the increments that follow it
increments.py    descriptions of increments; restores them
merging.py       merges an increment and its chain into a full checkpoint
row_marks.py     fingerprints that show which rows have changed
change_files.py  writes changed rows, and puts them back
"""
