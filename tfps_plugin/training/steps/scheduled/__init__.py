"""Synchronous steps in functions that a program schedules itself.

traced_steps.py  finds the step in a function while it is traced
group_calls.py   calls that all workers make together, one after another
"""
