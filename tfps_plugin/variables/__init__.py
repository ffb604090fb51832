"""Variables: their kinds, their shards, and where they live.

states/          the rules of states that a step assigns
step_trace.py    knowledge that lookups and updates share while a step is traced
testing.py       variables on this process's own device, for tests
kinds/           kinds of variables on parameter servers
methods/         the methods of a `tf.Variable`, for all kinds
per_worker/      resources of which every worker or lane has its own
sharding/        shards: how many, which rows, on which parameter server
initial_values/  initial values, made where the variables live
lookup/          lookups of rows, and the gradients of lookups
dynamic/         tables without a vocabulary
storage/         tables larger than memory
updates/         updates of variables where they live
compression/     values that travel in fewer bits
saving/          sharded variables in files
chief/           reads of the chief, and what they wait for
"""
