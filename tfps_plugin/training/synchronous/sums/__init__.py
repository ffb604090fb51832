"""Sums over workers that a step computes with, before its end.

shared_sums.py  all sums of a step function, and their gradients
sum_loops.py    one such sum, and the loops that add it up on a ps
"""
