"""Replicas of a step, and what they return.

worker_devices.py    the devices of workers that replicas compute on
worker_replicas.py   a step that the replicas of a worker trace together
replica_threads.py   threads that trace replicas in turn, and meet
replica_exchange.py  one change of the worker, made of those of its replicas
separation.py        keeps replicas apart in the Python objects that they share
inner_functions.py   functions inside of a step are traced for each replica
shares.py            means over the examples of all replicas
split_batches.py     batches that are split over replicas
device_copies.py     copies of parts of a batch on the devices of replicas
per_replica.py       values of the replicas of a worker, as one value
replica_context.py   the context of a step, and reductions in it
replica_results.py   results of workers and replicas, once they are fetched
"""
