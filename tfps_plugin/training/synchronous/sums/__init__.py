"""Sums over workers, before and after the end of a step.

shared_sums.py      all sums that a step function computes with, and gradients
sum_loops.py        one such sum, and the loops that add it up on a ps
example_weights.py  weights of workers by their numbers of examples
"""
