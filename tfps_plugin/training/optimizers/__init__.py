"""What Keras's optimizers do with variables of parameter servers.

methods.py                what is put in the place of Keras's own methods
step.py                   one optimizer.apply, where the variables live
compiled_steps.py         steps outside of functions, as one function each
gradient_clipping.py      clips gradients of which some are rows
whole_updates.py          variables whose rows are all updated in every step
moving_averages.py        moving averages of variables, on the ps
constraints.py            constraints of variables, on the ps
branches.py               conditions whose branches return nothing
gradient_accumulators.py  sums of gradients over several steps, on the ps
whole_matrix.py           which optimizers cannot update a table by its rows
table_semantics.py        tells what happens to rows that are not in a batch
catch_up/                 rows that make up for steps without a gradient
table_constraints.py      which constraints can be kept row by row
automatic/                tables that are small enough to be updated whole
"""
