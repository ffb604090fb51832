"""Measurements; none of them is a test.

chief_memory.py   what the chief needs to create a large sharded table
worker_loss.py    how long training stalls when a worker is killed
"""
