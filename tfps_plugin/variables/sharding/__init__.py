"""Shards: how many, which rows, on which parameter server.

partitioners.py  pure: into how many shards a variable is cut
layout.py        pure: the contiguous row ranges of the shards of a table
placement.py     pure: which ps takes the next bytes
inventory.py     what each ps holds, so that it can be made again
holdings.py      pure: what a ps holds, for people
"""
