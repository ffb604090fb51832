"""Functions of a worker that make steps.

step_functions.py     many steps as one function of a worker
step_loops.py         a worker's loops over the batches of one call
batches_ahead.py      batches that a loop takes one ahead of the step
round_sources.py      batches of a round of local steps
replica_steps.py      a model's step in all replicas of a worker
input_waits.py        seconds that steps wait for their batches
rounds.py             pure: number of steps in a round of its loop
step_calls.py         calls of a worker that make steps on what it reads
predict_functions.py  predictions of many batches as one function of a worker
eager_mode.py         tells whether steps run eagerly on the chief
"""
