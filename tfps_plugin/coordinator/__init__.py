"""Who runs what, and what happens when it fails.

failures.py              pure: what an exception of a closure points at
first_calls.py           has a function run alone on a worker the first time
closure.py               pure: the life of one scheduled call
closure_ledger.py        pure: which closures wait, run, end or are cancelled
short_functions.py       pure: whether functions end at once
resting_lanes.py         pure: which lane without work is to have the next
convoy_free_lock.py      a lock for which threads do not queue up
lane_waking.py           which lane is woken, and when
closure_queue.py         the ledger behind a lock, with blocking waits
roster.py                pure: which workers take part, and when to ask again
arguments.py             what a scheduled call is given, per worker
session_protocol.py      what is asked of the connection to the cluster
remote_value.py          the result of a closure, wherever it is
lane.py                  one of the threads that drive a worker
worker.py                the lanes of one worker
error_text.py            its message and your lines first, without libraries
error_notes.py           tells more of an exception than its message
inspector.py             asks tasks whether they live
stall_watch.py           pure: when a silent task is given up
hanging_calls.py         pure: when to look for calls that a lost ps left
ps_recovery.py           brings lost parameter servers back
membership.py            the one thread that changes who is in the cluster
cluster_coordinator.py   the public face: schedule, join, fetch
testing.py               a cluster without processes, for tests
"""
