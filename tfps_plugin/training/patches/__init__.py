"""Wrappers of Keras's and TensorFlow's functions.

hooks.py               installs everything below into Keras, in one place
trainer_methods.py     what compile, fit, evaluate and predict do for us
variable_methods.py    row lookups and atomic additions of a keras.Variable
lookups.py             keras.ops.take, tf.nn's lookups, LoRA: by row only
preprocessing.py       tables of workers, and what adapt() may not do
table_regularizers.py  penalties on the rows that a batch looks up
scope_check.py         checks that models were made under the scope
batch_callbacks.py     which callbacks look at the logs of batches
running_call.py        the fit, evaluate or predict that a thread is in
call_arguments.py      the arguments of those, checked before anything runs
"""
