"""Counters and events of a running job.

counters.py   thread-safe named numbers that only grow
events.py     typed events: a worker lost, a closure run again, ...
"""
