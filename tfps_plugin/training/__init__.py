"""The Keras face: unmodified compile, fit, evaluate and predict.

hooks.py              installs everything below into Keras, in one place
trainer_methods.py    what compile, fit, evaluate and predict do for us
call_arguments.py     the arguments of those, checked before anything runs
variable_methods.py   row lookups and atomic additions of a keras.Variable
lookups.py            keras.ops.take, tf.nn's lookups, LoRA: by row only
batch_callbacks.py    which callbacks look at the logs of batches
running_call.py       the fit, evaluate or predict that a thread is in
preprocessing.py      tables of workers, and what adapt() may not do
scope_check.py        checks that models were made under the scope
step_build.py         builds a model by tracing its own step
table_regularizers.py penalties on the rows that a batch looks up
table_saving.py       big variables to and from files, block by block
stored_array.py       a variable that a file takes block by block
lora_saving.py        embeddings with LoRA, merged block by block
exporting.py          SavedModels of models on parameter servers
callbacks.py          the public module `tfps.callbacks`
backup_and_restore.py fit goes on where it was, whatever process has died
layers.py             the public module `tfps.layers`
steps/                the steps of fit, evaluate and predict, on the workers
embedding/            its layer: many features over many tables
optimizers/           what optimizers do with variables of parameter servers
"""
