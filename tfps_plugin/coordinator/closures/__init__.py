"""Scheduled calls, from `schedule` to their results.

closure.py         pure: the states of one scheduled call
closure_ledger.py  pure: closures that wait and run, and the round's error
shared_ledger.py   the ledger behind a lock, shared by callers and lanes
closure_queue.py   the queue as callers see it
arguments.py       traces scheduled functions and binds their arguments
remote_value.py    the result of a closure, wherever it is
kept_results.py    results that are on workers, and may have to be fetched
"""
