"""The Keras face: unmodified compile, fit, evaluate and predict.

step_build.py         builds a model by tracing its own step
callbacks.py          the public module `tfps.callbacks`
backup_and_restore.py lets fit resume after any process has died
cluster_metrics.py    the state of a job in TensorBoard
layers.py             the public module `tfps.layers`
steps/                the steps of fit, evaluate and predict, on the workers
synchronous/          steps that all workers make together
bounded/              steps of workers that wait for those far behind
local/                rounds of steps on weights of the worker's own
embedding/            its layer: many features and many tables
optimizers/           what optimizers do with variables of parameter servers
patches/              wrappers of Keras's and TensorFlow's functions
exports/              exports of tables to processes that serve them
saving/               files of weights and SavedModels: Keras's part
"""
