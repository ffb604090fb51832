"""Keras's optimizers with variables on parameter servers.

methods.py                wrappers of the methods of Keras's optimizers
step.py                   one optimizer.apply, on the parameter servers
step_count.py             counts of steps, which wait for the gradients
step_staleness.py         staleness of the updates of one step
local_support.py          refuses optimizers that cannot make local steps
update_counts.py          updates, counted on the ps that make them
compiled_steps.py         steps outside of functions, as one function each
sparse_gradients.py       clips and sums gradients of which some are rows
made_rows.py              slots of rows that are made while a model trains
whole_updates.py          variables whose rows are all updated in every step
after_updates.py          moving averages and constraints, on the ps
branches.py               conditions whose branches return nothing
whole_matrix.py           optimizers and constraints that need whole tables
table_semantics.py        logs what happens to rows that are not in a batch
catch_up/                 rows that make up for steps without a gradient
automatic/                tables that are small enough to be updated whole
"""
