"""The steps of an epoch, as closures of the workers.

epoch_iterator.py   what Keras's loops go through: every step of an epoch
cluster_input.py    what it yields: the input of a pass, and its steps
step_dispatcher.py  what Keras calls for every step
step_run.py         the steps of one epoch, as closures of the workers
worker_read_run.py  those on input that the workers read themselves
chief_read_run.py   those on batches that the chief reads and sends
predict_run.py      predictions of the workers, in the order of the input
step_account.py     counts steps: asked for, begun, done
chief_batches.py    batches that the chief reads, as strings
"""
