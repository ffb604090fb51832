"""Functions of a worker that make steps.

step_functions.py     many steps as one function of a worker
step_loops.py         a worker's loops over the batches of one call
rounds.py             pure: how many steps a round of its loop makes
step_calls.py         calls of a worker that make steps on what it reads
predict_functions.py  predictions of many batches as one function of a worker
eager_mode.py         whether steps run one operation at a time, on the chief
"""
