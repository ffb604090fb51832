"""Reads of the chief, and the events that they wait for.

chief_reads.py      reads that survive changes of the cluster
worker_fetches.py   fetches of values of which nothing stays on other tasks
recovery_gate.py    place to wait while lost ps are restored
pending_writes.py   writes that need copies on the parameter servers
steps_in_flight.py  steps to finish before the chief reads the model
"""
