"""Rows that catch up with the optimizer steps that did not touch them.

zero_gradients.py    closed forms of steps without a gradient
adam_family.py       those of Adam, AdamW, Nadam and Adamax
other_families.py    those of the other optimizers
of_keras.py          the closed forms of Keras's optimizers
gap.py               the steps that passed since rows were updated
moment.py            a step, as rows remember it
step_clock.py        the newest step of an optimizer
learning_rates.py    learning rates of future steps
caught_up_shard.py   the shard of a table whose rows catch up
caught_up_step.py    one optimizer step on such tables, and its updates
caught_up_tables.py  all such tables of one optimizer
"""
