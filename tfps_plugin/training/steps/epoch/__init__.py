"""The steps of an epoch, as closures of the workers.

epoch_iterator.py   Keras's epoch iterator: yields every step of an epoch
cluster_input.py    the values that it yields: input of a pass, and its steps
step_dispatcher.py  the function that Keras calls for every step
step_run.py         the steps of one epoch, as closures of the workers
worker_read_run.py  steps on input that the workers read themselves
chief_read_run.py   steps on batches that the chief reads and sends
span_run.py         steps in spans, with one call of each worker and ps
sync_run.py         steps that all workers make together
late_batches.py     counts gradients that came too late for their step
bounded_run.py      steps with bounded staleness
predict_run.py      predictions of the workers, in the order of the input
step_account.py     counts requested, started and completed steps
chief_batches.py    batches that the chief reads, as strings
"""
