"""Threads that run closures on the workers.

lane.py              one of the threads that drive a worker
worker.py            the lanes of one worker
lane_waking.py       which lane is woken, and when
resting_lanes.py     pure: which lane without work is to have the next
short_functions.py   pure: whether functions end at once
convoy_free_lock.py  a lock for which threads do not queue up
first_calls.py       has a function run alone on a worker the first time
"""
