"""Exports of tables, for processes that serve them.

All of it is plain Python and NumPy: who serves needs no TensorFlow.

serving.py       the public module `tfps.serving`
tables.py        the tables of an export folder, which follow it
snapshot.py      all tables at one export
table.py         one table, as lookups see it
id_sets.py       sets of ids
string_hash.py   strings as ids
unknown_ids.py   the rule of a table for ids without a row
first_rows.py    first rows of ids
manifest.py      pure: the exports that a reader applies, one after the other
export_folder.py the folder: begins, commits and removes exports
array_files.py   arrays in files, with checksums
"""
