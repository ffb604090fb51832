"""Who runs what, and what happens when it fails.

session_protocol.py      what is asked of the connection to the cluster
error_text.py            its message and your lines first, without libraries
error_notes.py           tells more of an exception than its message
cluster_coordinator.py   the public face: schedule, join, fetch
testing.py               a cluster without processes, for tests
closures/                scheduled calls, from `schedule` to their results
lanes/                   threads that run closures on the workers
members/                 tasks that take part, and losses of tasks
"""
