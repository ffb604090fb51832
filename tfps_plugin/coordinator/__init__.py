"""Coordinator: runs functions on workers, and handles failures.

cluster_coordinator.py   the public class: schedule, join, fetch
caller_checks.py         refuses calls from the wrong place
worker_functions.py      traces and prepares functions for workers
pinned_tasks.py          pure: the workers that a function names by tf.device
worker_pool.py           wires queue, lanes and membership together
in_flight_limits.py      pure: number of functions a worker runs at a time
session_protocol.py      the connection to the cluster, as it is used here
scheduled_steps.py       protocol of synchronous steps in custom loops
error_text.py            pure: shortens TensorFlow's error messages
error_notes.py           adds notes to exceptions
testing.py               a cluster without processes, for tests
closures/                scheduled calls, from `schedule` to their results
lanes/                   threads that run closures on the workers
members/                 membership of the cluster, and losses of tasks
mapping/                 functions that run on each of many items
stragglers/              workers that are slower than the others
elastic/                 workers that join and leave while a program trains
"""
