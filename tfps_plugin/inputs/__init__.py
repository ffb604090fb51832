"""What a worker reads.

dataset_creator.py    `tfps.DatasetCreator`, input that every worker makes
input_context.py      which share of the input is being built on this thread
per_worker_values.py  one value per worker, built there when first needed
worker_dataset.py     one dataset per worker, from a function or a dataset
"""
