"""Fewer and smaller messages.

emission.py       makes the operations of a function in a new graph
explanation.py    a table of what a step sends
flat_function.py  a function as a list of operations
fusion.py         rewrites a step so that it sends few messages
packing.py        packs many tensors into few, for the way to another device
places.py         the task that a device belongs to
rewriting.py      runs the passes, and decides what a function sends together
row_packing.py    packs tensors, most of which are rows of one width
sections.py       critical sections: no message is awaited under a lock
soundness.py      checks that a rewritten function can run
staging.py        handles that a function reads on their parameter servers
waves.py          groups tensors of a step that can travel together
word_pieces.py    converts numbers to 4-byte words; concatenates and splits
passes/           passes over the operations of a function
"""
