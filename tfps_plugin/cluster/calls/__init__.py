"""Calls of functions on other tasks.

bounded_calls.py     calls that may hang, awaited with a deadline
cancelled_calls.py   cancels calls when their round or the connection ends
worker_calls.py      calls that the lanes of one worker make (pure)
dispatch_context.py  the worker that the current thread drives (pure)
"""
