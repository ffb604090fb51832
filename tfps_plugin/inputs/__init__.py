"""Input that workers read.

batch_codec.py        encodes batches as strings: many travel in one tensor
batch_cutter.py       shares of a batch, one for each of several workers
batch_rows.py         rows of a batch, of any structure
captured_inputs.py    datasets and iterators that functions capture
dataset_recipes.py    serialized datasets, sent by the chief, run by workers
dataset_creator.py    `tfps.DatasetCreator`: input that every worker creates
input_context.py      the share of the input that a thread is building
input_splits.py       the splits of an input: one pipeline for each worker
listed_splits.py      the splits that a user lists, such as files
per_worker_values.py  one value per worker, built there on first use
split_reader.py       gives every worker the iterator of its current split
splits.py             pure: which splits wait, are being read, and are done
tuning.py             datasets without TensorFlow's tuning at run time
worker_dataset.py     one dataset per worker, from a function or a dataset
"""
