"""Rows that catch up with the optimizer steps that did not touch them.

zero_gradients.py    closed forms of steps without a gradient
learning_rates.py    learning rates of steps that are still to come
step_clock.py        the newest step of an optimizer, as rows remember it
caught_up_shard.py   what one ps has of a table whose rows catch up
caught_up_update.py  one update of rows that catch up first
caught_up_tables.py  all such tables of one optimizer
"""
