"""Kinds of variables on parameter servers.

late_bound.py        a variable whose handle is looked up at call time
own_handle.py        the handle of a resource that a variable made itself
remote_variable.py   a whole variable on one ps
sharded_variable.py  a table sharded over several ps, one value to the user
mirrored_scalar.py   step counter, learning rate: on a ps, read from copies
tape_anchor.py       stand-in for the shards that a gradient tape watches
handle_areas.py      handles that functions find on their ps
"""
