"""The cluster: its tasks, their processes, and whether they are alive.

spec.py              describes a cluster, and refuses an invalid one (pure)
tf_config.py         `TF_CONFIG` and resolvers -> role of a process (pure)
environment.py       environment settings made for TensorFlow and gRPC
quorum.py            the tasks that have to answer before a job starts (pure)
health.py            asks a task's server whether it lives, and who it is
runtime_errors.py    finds TensorFlow's errors about the cluster (pure)
task.py              `tfps.init()`: one call for a program all tasks run
local_cluster.py     a whole cluster of real processes on this machine
forking/             tasks of that cluster, forks of one process
output/              output of tasks, and the part that users see
serving/             the process of a worker or parameter server
mapped_memory/       memory of parameter servers that is on their disks
machine/             settings of the machine: memory, cores, ports
chief/               the chief's connection to the tasks
calls/               calls of functions on other tasks
"""
