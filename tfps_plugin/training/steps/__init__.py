"""The steps of fit, evaluate and predict, on the workers.

epoch_iterator.py     what Keras's loops go through: every step of an epoch
cluster_input.py      what it yields: the input of a pass, and its steps
step_dispatcher.py    what Keras calls for every step
eager_mode.py         whether steps run one operation at a time, on the chief
step_run.py           the steps of one epoch, as closures of the workers
worker_read_run.py    those on input that the workers read themselves
chief_read_run.py     those on batches that the chief reads and sends
step_account.py       counts steps: asked for, begun, done
step_functions.py     many steps as one function of a worker
rounds.py             pure: how many steps a round of its loop makes
step_calls.py         calls of a worker that make steps on what it reads
step_states.py        how the states that a step assigns are kept right
step_loops.py         a worker's loops over the batches of one call
counted_sums.py       what single calls have counted, put together
lane_sums.py          what lanes have counted, brought at once
split_counts.py       pure: what was counted of splits that may be lost
chief_batches.py      batches that the chief reads, as strings
predict_run.py        predictions of the workers, in the order of the input
predict_functions.py  predictions of many batches as one function of a worker
packing.py            pure: how many steps to a call
calls_in_flight.py    pure: how many calls a worker runs at a time
loss_reports.py       the losses behind what steps report
loss_course.py        pure: whether the training loss falls fast, or jumps
progress_logs.py      what the progress bar and batch callbacks are shown
"""
