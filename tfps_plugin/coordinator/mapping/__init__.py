"""Functions that run on each of many items, and what is made of the results.

map_and_reduce.py  the methods of the coordinator
mapped_calls.py    calls of a function with each item, a few at a time
reductions.py      pure: sums, means and extremes of results
"""
