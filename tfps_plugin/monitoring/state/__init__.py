"""State of a running job as plain values, and what shows it elsewhere.

cluster_state   the dataclasses: a job, its tasks, its progress
json_form       the same as JSON, and back
event_log       the latest events, with their times
progress        what the program runs now: epoch, step, loss
rates           pure: counters that grow, as rates
prometheus      the same as metrics of Prometheus
testing         a state, for tests of what shows states
"""
