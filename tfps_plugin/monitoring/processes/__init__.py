"""Readings of a process about itself: memory, processors, network.

proc_readings   reads it from Linux's /proc, control groups and sockets
busy_share      share of the time in which a process computes
task_report     what a task tells about itself, as text
reporter        thread of a task that brings its report up to date
"""
