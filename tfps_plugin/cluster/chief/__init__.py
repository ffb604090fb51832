"""The chief's connection to the tasks.

session.py        the chief's connection: connect, delist, readmit, end
rejoining.py      makes the tasks ready for another strategy
attachment.py     connects TensorFlow's runtime to a cluster
connection.py     one connection, its end, and the state it owns (pure)
connections.py    breaks connections to a task that has fallen silent
runtime_view.py   the tasks that TensorFlow knows, and changes of them
address_book.py   current addresses of tasks, which may move (pure)
enrolment.py      the workers that belong to the cluster, also added ones
announcer.py      tells the tasks who the chief is, and when the job is over
leftovers.py      frees resources that an earlier chief left on a ps
free_workers.py   waits for workers that are busy with other functions
this_process.py   state that a process has only once (pure)
server_def.py     ClusterSpec -> `tf.train.ServerDef` of the chief
program_end.py    tells a normal end of the program from an exception
"""
