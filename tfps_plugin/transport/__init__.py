"""Fewer and smaller messages.

emission.py       makes the operations of a function in a new graph
explanation.py    what a step sends, for people
flat_function.py  the operations of a function as a list
fusion.py         rewrites a step so that it sends few messages
packing.py        many tensors as few, for the way from one device to another
places.py         which task a device belongs to
rewriting.py      decides what a function sends together
row_packing.py    many tensors as few, most of which are rows of one width
sections.py       what runs while a lock is held
soundness.py      whether what was made anew can run
staging.py        handles that a function takes from their parameter servers
waves.py          which tensors of a step travel together
word_pieces.py    numbers as words, laid end to end and cut again
passes/           passes over the operations of a function
"""
