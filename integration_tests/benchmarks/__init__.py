"""Measurements; none of them is a test.

checkpoints.py            how fast checkpoints are, and how long training waits
chief_memory.py           what the chief needs to create a large sharded table
__main__.py               compares this library with its peers
comparison.py             contestants that train in turns
contestant.py             one of them, in a process of its own
hand_fused.py             the limit: the same arithmetic, fused by hand
peers.py                  TensorFlow's own strategy and tf-keras
workloads.py              what is trained in comparisons
processes.py              what processes have computed
coordinator_scale.py      what the coordinator itself costs
distributed_embedding.py  what one layer for 26 tables saves over 26 layers
input_kinds.py           what it costs that the chief reads, and not the workers
ps_loss.py                how long training stalls when a ps is killed
quality/                  what staleness and lazy rows cost, on real data
saving_memory.py          what saving and loading a large table costs in memory
steps_watch.py            sees when steps are made
table_memory.py           what a large table costs the chief and each ps
task_memory.py            what tuning the machine costs in memory of tasks
table_step_time.py        whether a step's time depends on the table's size
worker_loss.py            how long training stalls when a worker is killed
"""
