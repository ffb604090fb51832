"""The chief's connection to the tasks.

session.py        the chief's connection: connect, delist, readmit, end
attachment.py     connects TensorFlow's runtime to a cluster
connection.py     one connection, its end, and the state it owns (pure)
connections.py    breaks those to a task that has fallen silent
runtime_view.py   the tasks that TensorFlow knows, and changes of them
address_book.py   where tasks are now: they may come back elsewhere (pure)
announcer.py      tells the tasks which chief there is, and when it is over
leftovers.py      frees what an earlier chief has left on a ps
free_workers.py   waits for workers that others keep from running anything
this_process.py   state that a process has only once (pure)
server_def.py     ClusterSpec -> what TensorFlow connects to
program_end.py    whether the program ends normally or by an exception
"""
