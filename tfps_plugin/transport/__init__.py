"""Fewer and smaller messages.

duplicates.py   what a step computes again and again, computed once
emission.py     makes the operations of a function in a new graph
explanation.py  what a step sends, for people
flat_function.py  the operations of a function as a list
flattening.py   a function as one list of operations
fusion.py       rewrites a step so that it sends few messages
id_checks.py    the checks of many tables' ids as one
known_sizes.py  axes and sizes that are known before a function runs
needed.py       what of a function has to run
packing.py      many tensors as few, for the way from one device to another
places.py       which task a device belongs to
rewriting.py    decides what a function sends together
reordering.py   a list of operations in another order
row_packing.py  many tensors as few, most of which are rows of one width
run_ahead.py    what the next round of a loop need not wait for
sections.py     what runs while a lock is held
step_order.py   what a step waits for of the one before in its round
short_rows.py   how short rows of variables are gathered
soundness.py    whether what was made anew can run
staging.py      handles that a function takes from their parameter servers
transpositions.py  what is cut along one axis and joined along the other
waves.py        which tensors of a step travel together
word_pieces.py  numbers as words, laid end to end and cut again
"""
