"""Tasks that take part, and losses of tasks.

membership.py     the one thread that changes who is in the cluster
roster.py         pure: which workers take part, and when to ask again
inspector.py      asks tasks whether they live
stall_watch.py    pure: when a silent task is given up
hanging_calls.py  pure: when to look for calls that a lost ps left
ps_recovery.py    brings lost parameter servers back
failures.py       pure: what an exception of a closure points at
"""
