"""Counters, events and states of a running job, and what shows them.

counters.py    thread-safe named numbers that only grow
staleness.py   pure: histogram of the staleness of updates
state/         the state of a job as plain values; its forms
processes/     what a process can tell of itself
serving/       states over HTTP, between processes
events.py      typed events: a worker lost, a closure run again, ...
"""
