"""All of Keras on a cluster, each run compared with single-process Keras.

Tables (with a test for every row):

input_table.py         every input of fit, evaluate and predict
callback_table.py      every callback of Keras
model_table.py         every kind of model

Contents of the tables:

input_arguments.py     arguments of the three methods
creator_inputs.py      inputs that the workers read
chief_inputs.py        inputs that the chief reads
callback_inputs.py     the same batch repeatedly, for callbacks
tensorboard_events.py  files of TensorBoard's callback
orbax_checkpoints.py   files of Orbax's callback
moments.py             the steps that weights have seen

Tests, each for variables whole on a ps and in shards on two:

inputs_test.py         every example once, Keras's loop and history unchanged
callbacks_test.py      callbacks see and leave the same as in one process
lag_test.py            distance of callbacks from the steps
progress_bar_test.py   the bar moves with the steps, and costs what it shows
methods_test.py        single batches, eager steps, early ends
predict_test.py        all workers predict, in order
models_test.py         models train to the same numbers
fusion_test.py         messages that are combined do not change results
saving_test.py         files have the same content, and work both ways

Shared modules:

bench.py               a model for which the order of steps does not matter
model_runs.py          results of a model that is trained and used
comparison.py          comparison of two runs
placements.py          placements of the variables
paces.py               ways to pack steps, and an epoch that shows them
selection.py           sample of the cells to run
conftest.py            the clusters and strategies
report.py              runs the suite and prints its table
"""
