"""The only door to private TensorFlow and Keras API.

Each module opens one room of theirs; each name says why it is needed.

tensorflow_variables.py   resource variables, their handles, tapes, captures
tensorflow_lookups.py     tf.nn's lookups of embeddings, tf.gather by ragged ids
tensorflow_tables.py      lookup tables, and what functions capture of them
tensorflow_loops.py       gradients of loops and branches
tensorflow_vectorizing.py  what is vectorized of a function
tensorflow_saving.py      checkpoints, and what a SavedModel makes of variables
tensorflow_strategy.py    the base classes of a `tf.distribute.Strategy`
tensorflow_inputs.py      what datasets say about their elements
tensorflow_captures.py    what graph functions capture, and where that is
tensorflow_graphs.py      one graph function made out of another
tensorflow_server.py      servers and sessions, without the rest of TensorFlow
tensorflow_cluster.py     the eager context's cluster membership
tensorflow_earlier_state.py objects from before the process became a chief
tensorflow_earlier_traces.py traced functions from before, on lost devices
tensorflow_lost.py         stand-ins for tensors that the process has lost
tensorflow_functions.py   how functions become known to the tasks
tensorflow_execution.py   executors and concrete functions
tensorflow_checkpoints.py what is in a tf.train.Checkpoint, what was restored
keras.py                  the trainer, epoch iterator, variables, initializers
keras_optimizers.py       what happens inside optimizer.apply
keras_layers.py           the penalties of a layer's weights
keras_callbacks.py        the files of the TensorBoard callback
keras_saving.py           how weights get into files
"""
