"""The steps of fit, evaluate and predict, on the workers.

traced/               functions of a worker that make steps
scheduled/            synchronous steps of custom loops
epoch/                the steps of an epoch, as closures of the workers
tuning/               how much to send to the workers at a time
metrics/              metric states and logs of steps on the workers
"""
