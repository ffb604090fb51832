"""Wrappers of Keras's and TensorFlow's functions.

hooks.py               applies the table of patches with the first strategy
trainer_methods.py     wrappers of compile, fit, evaluate and predict
variable_methods.py    the class of a keras.Variable on parameter servers
lookups.py             keras.ops.take, tf.nn's lookups, LoRA: by row only
preprocessing.py       captured tables and datasets; adapt() in functions
table_regularizers.py  penalties on the rows that a batch looks up
replica_metrics.py     metrics that count batches, of which replicas have parts
average_losses.py      losses that TensorFlow divides by a number of replicas
losses_beside_outputs.py  losses of outputs that a ps has computed
scope_check.py         checks that models were made under the scope
batch_callbacks.py     finds callbacks that use the logs of batches
fit_progress.py        tells the monitor of epochs, steps and examples
running_call.py        the fit, evaluate or predict call of a thread
call_arguments.py      checks the arguments of these calls
"""
