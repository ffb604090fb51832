"""All of Keras on a cluster, each run compared with single-process Keras.

Tables (what there is; a test for every row):

input_table.py         what can be given to fit, evaluate and predict
callback_table.py      every callback of Keras
model_table.py         every kind of model

What is in the tables:

input_arguments.py     arguments of the three methods
creator_inputs.py      what the workers read
chief_inputs.py        what the chief reads
callback_inputs.py     the same batch again and again, for callbacks
tensorboard_events.py  what TensorBoard's callback has written
orbax_checkpoints.py   what Orbax's callback has written
moments.py             which steps weights have seen

Tests, each for variables whole on a ps and in shards on two:

inputs_test.py         every example once, Keras's loop and history as they are
callbacks_test.py      callbacks see, and leave, what they do in one process
lag_test.py            how far callbacks are behind the steps
progress_bar_test.py   the bar moves with the steps, and costs what it shows
methods_test.py        single batches, eager steps, early ends
predict_test.py        all workers predict, in order
models_test.py         models train to the same numbers
fusion_test.py         what is sent together comes to what it did one by one
saving_test.py         files are the same inside, and go both ways

What they share:

bench.py               a model for which the order of steps is all the same
model_runs.py          what a model comes to when it is trained and used
comparison.py          what two runs have to have in common
placements.py          where the variables are
paces.py               how steps are packed, and an epoch in which that shows
selection.py           which cells run where not all of them do
conftest.py            the clusters and strategies
report.py              runs the suite and prints its table
"""
