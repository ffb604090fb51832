"""Exports of tables to processes that serve them.

exporters.py         `tfps.export_changes`: the exporters of all models
export_callback.py  `tfps.callbacks.ExportChanges`
exporter.py         the exports of one model to one folder
folder_lock.py      the lock of the folder
one_moment.py       takes values anew if the model was restored meanwhile
model_tables.py     the tables of a model
row_copies.py       copies rows that have changed, where they are
taken_rows.py       the rows that were copied
"""
