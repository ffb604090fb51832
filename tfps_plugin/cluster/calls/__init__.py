"""Calls of functions on other tasks.

bounded_calls.py     calls that may hang, waited for with a deadline
cancelled_calls.py   which calls of functions end when something else does
present_call.py      what the function needs that a lane calls now (pure)
turns.py             who runs functions on a worker beside others
dispatch_context.py  which worker the current thread dispatches to (pure)
"""
