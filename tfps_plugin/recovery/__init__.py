"""Checkpoints that parameter servers write, and recovery from them.

checkpoints/       writes, finds and reads checkpoints
incremental/       checkpoints that hold only the rows that have changed
resharding/        variables that move to other parameter servers
failover.py        restores the variables of a replaced parameter server
standby.py         a second copy of every shard, on the next parameter server
variable_copy.py   the copy of one variable or shard
directory_copy.py  copies of a shard of a table without a vocabulary
directory_shard.py the variables of such a shard that belong together
locked_reads.py    reads of one moment of all of them
transfers.py       values on their way between two parameter servers
"""
