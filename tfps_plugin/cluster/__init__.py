"""Who is in the cluster, what each process of it is, and are they alive.

spec.py              what a cluster consists of; refuses what it cannot (pure)
tf_config.py         `TF_CONFIG` and resolvers -> what a process is (pure)
environment.py       environment settings made for TensorFlow and gRPC
quorum.py            the tasks that have to answer before a job starts (pure)
health.py            asks a task's server whether it lives, and who it is
runtime_errors.py    which errors of TensorFlow are about the cluster (pure)
task.py              `tfps.init()`: one call for a program all tasks run
local_cluster.py     a whole cluster of real processes on this machine
output/              what tasks write, and what people see of it
serving/             the process of a worker or parameter server
machine/             settings of the machine: memory, cores, ports
chief/               the chief's connection to the tasks
calls/               calls of functions on other tasks
"""
