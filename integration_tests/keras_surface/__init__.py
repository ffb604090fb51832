"""All of Keras on a cluster, each run compared with single-process Keras.

Tables (what there is; a test for every row):

input_table.py     what can be given to fit, evaluate and predict
callback_table.py  every callback of Keras
model_table.py     every kind of model

Tests, each for variables whole on a ps and in shards on two:

inputs_test.py     every example once, Keras's loop and history as they are
callbacks_test.py  callbacks see, and leave, what they do in one process
methods_test.py    single batches, eager steps, early ends, the progress bar
models_test.py     models train to the same numbers
saving_test.py     files are the same inside, and go both ways

What they share:

bench.py           a model whose training does not depend on the order of steps
comparison.py      what two runs have to have in common
placements.py      where the variables are
conftest.py        the clusters and strategies
report.py          runs the suite and prints its table
"""
