"""Private TensorFlow API of the runtime.

tensorflow_server.py          servers, sessions and functions of a task, alone
tensorflow_cluster.py         the eager context's cluster membership
tensorflow_devices.py         the device that a program names by tf.device
tensorflow_functions.py       the registration of functions with the tasks
tensorflow_constants.py       constants that are made on other tasks
tensorflow_execution.py       executors and concrete functions
tensorflow_fetch.py           the fetch of values from other tasks
tensorflow_tracing.py         scopes of a trace, for another thread
tensorflow_strategy.py        the base classes of a `tf.distribute.Strategy`
tensorflow_earlier_state.py   objects from before the process became a chief
tensorflow_earlier_traces.py  earlier traced functions on lost devices
tensorflow_placed_traces.py   traced functions with variables that have moved
living_objects.py             living objects of given classes
tensorflow_lost.py            stand-ins for tensors that the process has lost
"""
