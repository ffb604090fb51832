"""Passes over the operations of a function.

duplicates.py      what a step computes again and again, computed once
needed.py          what of a function has to run
flattening.py      a function as one list of operations
run_ahead.py       what the next round of a loop need not wait for
id_checks.py       the checks of many tables' ids as one
short_rows.py      how short rows of variables are gathered
known_sizes.py     axes and sizes that are known before a function runs
transpositions.py  what is cut along one axis and joined along the other
step_order.py      what a step waits for of the one before in its round
reordering.py      a list of operations in another order
"""
