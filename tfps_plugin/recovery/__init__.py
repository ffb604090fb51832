"""Checkpoints that parameter servers write, and recovery from them.

checkpoints/     writes, finds and reads checkpoints
incremental/     checkpoints that hold only the rows that have changed
resharding/      variables that move to other parameter servers
failover.py      restores the variables of a replaced parameter server
standby.py       a second copy of every shard, on the next parameter server
transfers.py     values on their way between two parameter servers
"""
