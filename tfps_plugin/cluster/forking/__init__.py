"""Tasks of a local cluster as forks of one process.

fork_server.py   the process that loads TensorFlow once, and forks tasks
forked_tasks.py  the other end: starts tasks, and knows how they have ended
"""
