"""Counters and events of a running job.

counters.py    thread-safe named numbers that only grow
staleness.py   pure: histogram of the staleness of updates
events.py      typed events: a worker lost, a closure run again, ...
"""
