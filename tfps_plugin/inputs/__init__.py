"""What a worker reads.

batch_codec.py        batches as strings: many travel in one tensor
captured_inputs.py    datasets and iterators that functions use from outside
dataset_recipes.py    what the chief sends to a worker, to be run there
dataset_creator.py    `tfps.DatasetCreator`, input that every worker makes
input_context.py      which share of the input is being built on this thread
input_splits.py       how the splits of an input are found, and each is read
per_worker_values.py  one value per worker, built there when first needed
split_reader.py       gives every worker the iterator of the split it reads
splits.py             which splits wait, are being read, and were read
tuning.py             pipelines that end when they are dropped
worker_dataset.py     one dataset per worker, from a function or a dataset
"""
