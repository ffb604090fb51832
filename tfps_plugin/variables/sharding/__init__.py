"""Shards: their number, their rows, and their parameter servers.

partitioners.py  pure: the number of shards of a variable
layout.py        pure: the contiguous row ranges of the shards of a table
placement.py     pure: the ps for the next variable, by bytes
inventory.py     lists the variables of each ps, to make them again
holdings.py      pure: summary of what a ps holds, for messages
"""
