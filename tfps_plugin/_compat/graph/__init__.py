"""Private TensorFlow API of graphs, variables and other objects in them.

tensorflow_graphs.py       one graph function made out of another
tensorflow_captures.py     captures of graph functions, and their devices
tensorflow_gradients.py    gradients on the devices of the forward pass
tensorflow_tapes.py        functions, and the tapes that record around them
tensorflow_loops.py        gradients of loops and branches
tensorflow_vectorizing.py  functions that are being vectorized
tensorflow_variables.py    resource variables, their handles, tapes, captures
tensorflow_tables.py       lookup tables, and functions that capture them
tensorflow_inputs.py       kinds of datasets and iterators
tensorflow_saving.py       checkpoints, and variables in a SavedModel
tensorflow_checkpoints.py  contents of a tf.train.Checkpoint
"""
