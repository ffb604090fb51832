"""The chief's connection to the tasks.

session.py        the chief's connection: connect, delist, readmit, end
attachment.py     connects TensorFlow's runtime to a cluster
connection.py     whether the one that something was made on lasts (pure)
connections.py    breaks those to a task that has fallen silent
runtime_view.py   which tasks TensorFlow knows, and how that is changed
address_book.py   where tasks are now: they may come back elsewhere (pure)
announcer.py      tells the tasks which chief there is, and when it is over
leftovers.py      frees what an earlier chief has left on a ps
free_workers.py   waits for workers that others keep from running anything
open_sessions.py  which clusters this process is connected to
server_def.py     ClusterSpec -> what TensorFlow connects to
program_end.py    does this program end well or by an exception?
"""
