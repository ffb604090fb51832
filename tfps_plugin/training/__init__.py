"""The Keras face: unmodified compile, fit, evaluate and predict.

hooks.py              installs everything below into Keras, in one place
trainer_methods.py    what compile, fit, evaluate and predict do for us
variable_methods.py   row lookups and atomic additions of a keras.Variable
lookups.py            keras.ops.take, tf.nn's lookups, LoRA: by row only
epoch_input.py        the input of one fit or evaluate, on all workers
step_function.py      many steps as one function of a worker
step_dispatcher.py    collects the steps that Keras asks for into calls
packing.py            pure: how many steps to a call
progress_logs.py      what the progress bar and batch callbacks are shown
scope_check.py        refuses models that were not made under the scope
table_regularizers.py penalties on the rows that a batch looks up
table_saving.py       big variables to and from files, block by block
stored_array.py       a variable that a file takes block by block
layers.py             the public module `tfps.layers`
embedding/            its layer: many features over many tables
optimizers/           what optimizers do with variables of parameter servers
"""
