"""Synchronous steps in functions that a program schedules itself.

traced_steps.py        finds the step in a function while it is traced
numbered_functions.py  functions that tell which step a worker has made
waiting_call.py        a call that waits, and its results by worker
span_calls.py          the calls of one span, as each member makes them
group_calls.py         calls that all workers make together, one after another
"""
