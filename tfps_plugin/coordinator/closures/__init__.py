"""Scheduled calls, from `schedule` to their results.

closure.py         pure: the life of one scheduled call
closure_ledger.py  pure: which closures wait, run, end or are cancelled
closure_queue.py   the ledger behind a lock, with blocking waits
arguments.py       what a scheduled call is given, per worker
remote_value.py    the result of a closure, wherever it is
"""
