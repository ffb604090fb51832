"""Passes over the operations of a function.

inlining.py               lists a function's operations, calls inlined
deferred_controls.py      effects wait for what constants would wait for
dead_code.py              leaves out operations that nothing needs
common_subexpressions.py  computes equal expressions of a step once
step_order.py             orders the steps of one iteration of a loop
loop_overlap.py           lets a loop's next iteration begin before updates end
"""
