"""Threads that run closures on the workers.

lane.py              one of the threads that drive a worker
failed_runs.py       decides whether a failed closure runs again
worker.py            the lanes of one worker
lane_queue.py        the closure queue as lanes see it
lane_scheduler.py    wakes and starts lanes when there is work
idle_lanes.py        pure: the choice of the lane for the next closure
first_calls.py       runs a function alone on a worker the first time
"""
