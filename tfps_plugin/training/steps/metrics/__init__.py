"""Metric states and logs of steps on the workers.

step_states.py       keeps the states that a step assigns correct
lane_sums.py         metric states of lanes, fetched at once
counted_sums.py      metric states of single calls, merged
progress_logs.py     logs for the progress bar and batch callbacks
split_counts.py      pure: counts of splits that may be lost
staleness_report.py  staleness of an epoch's updates, logged and counted
"""
