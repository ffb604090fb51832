"""`tfps.layers.DistributedEmbedding`: many tables as one.

distributed_embedding.py  the layer
config.py                 what describes a feature and its table
plan.py                   which variables a layer has, who looks up where
stacks.py                 pure: which tables are stacked, where each begins
feature_tree.py           the user's structure of features
feature_ids.py            the ids of one feature; its rows combined
id_counts.py              how many ids each feature has, and what follows
matrix_columns.py         features that are columns of one matrix
stacked_lookup.py         one lookup for all features of a stack
"""
