"""Checkpoints that have only the rows that have changed.

chain.py         pure: a full checkpoint and the increments behind it
increments.py    what an increment needs, and restoring it
merging.py       makes a full checkpoint of an increment
row_marks.py     tells which rows of tables have changed
change_files.py  writes those rows, and puts them back
"""
