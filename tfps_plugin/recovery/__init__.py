"""Checkpoints that parameter servers write, and what is made of them.

standby_copies.py       a second copy of every shard, on the next ps
standby.py              keeps them up to date while training goes on
failover.py             brings back what lost parameter servers held
checkpoints/            checkpoints: written, found, read
incremental/            checkpoints that have only the rows that have changed
"""
