"""Exports of tables to processes that serve them.

exporters.py         `tfps.export_changes`: the exporters of all models
export_callback.py  `tfps.callbacks.ExportChanges`
exporter.py         the exports of one model to one folder
model_tables.py     the tables of a model
taken_rows.py       rows that have changed, copied where they are
"""
