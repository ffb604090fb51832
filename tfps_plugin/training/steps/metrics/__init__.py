"""Metric states and logs of steps on the workers.

step_states.py    how the states that a step assigns are kept right
lane_sums.py      what lanes have counted, brought at once
counted_sums.py   what single calls have counted, put together
progress_logs.py  what the progress bar and batch callbacks are shown
split_counts.py   pure: what was counted of splits that may be lost
"""
