"""Measurements; none of them is a test.

checkpoints.py            speed of checkpoints, and stalls of training
chief_memory.py           memory of the chief to create a large sharded table
__main__.py               compares this library with its peers
comparison.py             contestants that train in turns
contestant.py             one of them, in a process of its own
hand_fused.py             the limit: the same arithmetic, fused by hand
peers.py                  TensorFlow's own strategy and tf-keras
workloads.py              models and data of comparisons
processes.py              processor time of processes
coordinator_scale.py      cost of the coordinator itself
distributed_embedding.py  savings of one layer for 26 tables over 26 layers
input_kinds.py            cost of input that the chief reads, not the workers
ps_loss.py                stall of training when a ps is killed
quality/                  cost of staleness and lazy rows in quality
hot_ps.py                 the busiest ps, before and after placement by traffic
elastic.py                training while workers and ps come and go
replicas.py               cost of two replicas a worker, on the same cores
saving_memory.py          memory for saving and loading a large table
export_reader.py          follows exported tables, beside dynamic_soak.py
steps_watch.py            records when steps are made
sync_losses.py            stall of synchronous training when a task is lost
sync_scale.py             cost of a synchronous step with many members
table_memory.py           memory of the chief and each ps for a large table
task_memory.py            cost of tuning the machine in memory of tasks
table_step_time.py        dependence of a step's time on the table's size
worker_loss.py            stall of training when a worker is killed
"""
