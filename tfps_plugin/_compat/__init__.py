"""The only door to private TensorFlow and Keras API.

Each module opens one room of theirs; each name says why it is needed.

tensorflow_variables.py   resource variables, their handles, tapes, captures
tensorflow_strategy.py    the base classes of a `tf.distribute.Strategy`
tensorflow_cluster.py     the eager context's cluster membership
tensorflow_execution.py   executors and concrete functions
keras.py                  the trainer, epoch iterator, variables, initializers
"""
