"""What happened and how often.

counters.py   named numbers that only grow, safe from several threads
events.py     typed events: a worker lost, a closure run again, ...
"""
