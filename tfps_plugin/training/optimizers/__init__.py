"""Keras's optimizers with variables on parameter servers.

methods.py                wrappers of the methods of Keras's optimizers
step.py                   one optimizer.apply, on the parameter servers
compiled_steps.py         steps outside of functions, as one function each
gradient_clipping.py      clips dense gradients and gradients of rows
whole_updates.py          variables whose rows are all updated in every step
moving_averages.py        moving averages of variables, on the ps
constraints.py            constraints of variables, on the ps
branches.py               conditions whose branches return nothing
gradient_accumulators.py  sums of gradients over several steps, on the ps
whole_matrix.py           optimizers that cannot update a table by its rows
table_semantics.py        logs what happens to rows that are not in a batch
catch_up/                 rows that make up for steps without a gradient
table_constraints.py      constraints that can be applied row by row
automatic/                tables that are small enough to be updated whole
"""
