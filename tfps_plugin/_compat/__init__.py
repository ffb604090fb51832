"""The only door to private TensorFlow and Keras API.

Each module has one topic, and each name says why it is needed.

patches.py                 replaces their attributes, and restores them
patch_table.py             lists every attribute that is replaced
tensorflow_variables.py    resource variables, their handles, tapes, captures
tensorflow_tables.py       lookup tables, and functions that capture them
tensorflow_loops.py        gradients of loops and branches
tensorflow_vectorizing.py  functions that are being vectorized
tensorflow_saving.py       checkpoints, and variables in a SavedModel
tensorflow_strategy.py     the base classes of a `tf.distribute.Strategy`
tensorflow_inputs.py       kinds of datasets and iterators
tensorflow_captures.py     captures of graph functions, and their devices
tensorflow_graphs.py       one graph function made out of another
tensorflow_server.py       servers and sessions, without the rest of TensorFlow
tensorflow_cluster.py      the eager context's cluster membership
tensorflow_earlier_state.py  objects of a process from before it became a chief
tensorflow_earlier_traces.py  earlier traced functions on lost devices
tensorflow_lost.py         stand-ins for tensors that the process has lost
tensorflow_functions.py    the registration of functions with the tasks
tensorflow_execution.py    executors and concrete functions
tensorflow_checkpoints.py  contents of a tf.train.Checkpoint
keras.py                   the trainer, epoch iterator, variables, initializers
keras_optimizers.py        the parts of optimizer.apply
keras_callbacks.py         the files of the TensorBoard callback
keras_saving.py            files of weights
"""
