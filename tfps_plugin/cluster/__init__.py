"""Who is in the cluster, what each process of it is, and are they alive.

spec.py              what a cluster consists of; refuses what it cannot (pure)
tf_config.py         `TF_CONFIG` and resolvers -> what a process is (pure)
present_call.py      what the function needs that a lane calls now (pure)
turns.py             who runs functions on a worker beside others
environment.py       environment settings made for TensorFlow and gRPC
ports.py             network ports reserved without a race; own address
bounded_calls.py     calls that may hang, waited for with a deadline
quorum.py            the tasks that have to answer before a job starts (pure)
health.py            asks a task's server whether it lives, and who it is
messages.py          what the chief tells a task (pure)
mailbox.py           carries these messages: a queue on the task itself
job_pipe.py          how an evaluator learns that the chief has ended
server_def.py        ClusterSpec -> what TensorFlow connects to
attachment.py        connects TensorFlow's runtime to a cluster
runtime_errors.py    which errors of TensorFlow are about the cluster (pure)
address_book.py      where tasks are now: they may come back elsewhere (pure)
connection.py        whether the one that something was made on lasts (pure)
cancelled_calls.py   which calls of functions end when something else does
connections.py       breaks those to a task that has fallen silent
runtime_view.py      which tasks TensorFlow knows, and how that is changed
leftovers.py         frees what an earlier chief has left on a ps
announcer.py         tells the tasks which chief there is, and when it is over
session.py           the chief's connection: connect, delist, readmit, end
free_workers.py      waits for workers that others keep from running anything
open_sessions.py     which clusters this process is connected to
program_end.py       does this program end well or by an exception?
chief_watch.py       when does a task end itself? (pure)
large_pages.py       has tasks keep tensors in large pages of memory
freed_memory.py      keeps memory that a step has freed for the next one
server_threads.py    how many threads a task's server computes with
shared_cores.py      how tasks of one machine share its cores
task_server.py       the life of a worker or ps process
task.py              `tfps.init()`: one call for a program all tasks run
local_cluster.py     a whole cluster of real processes on this machine
output/              what tasks write, and what people see of it
dispatch_context.py  which worker the current thread dispatches to (pure)
"""
