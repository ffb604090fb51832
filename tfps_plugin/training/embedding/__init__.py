"""Embedding layers: many tables as one, and tables without a vocabulary.

distributed_embedding.py  the layer
dynamic_embedding.py      the layer without a vocabulary
rows_by_id.py             a table whose rows are found by ids of any value
row_stack.py              variables and lookups of such tables, stacked or alone
row_options.py            pure: options of such rows, and their checks
config.py                 descriptions of a feature and its table
plan.py                   the variables of a layer, and who looks up where
stacks.py                 pure: decides which tables are stacked, and where
feature_tree.py           the user's structure of features
feature_ids.py            the ids of one feature; its rows combined
id_counts.py              the number of ids that each feature has
matrix_columns.py         features that are columns of one matrix
cached_rows.py            the rows that workers keep
stacked_lookup.py         one lookup for all features of a stack
"""
