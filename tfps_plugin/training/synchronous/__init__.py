"""Synchronous training: workers make one step together.

global_step.py  the part of a step that runs on each worker
parcels.py      what one worker sends to one parameter server in a step
stacked_rows.py rows of several shards on a ps, as rows of one table
assignments.py  how to combine the values that a step assigns on each worker
applier.py      the function by which a parameter server applies steps
scalars.py      scalars of an optimizer, one copy on each parameter server
norms.py        norms of gradients with parts on several parameter servers
exclusions.py   pure: workers that sit out because their calls fail
reach.py        waits until workers reach the parameter servers again
span.py         some steps, with one call of each worker and parameter server
spans.py        the spans of a connection, and who takes part in them
span_parts.py   protocols of what a span needs
together.py     spans of global steps, and the objects that make them
losses.py       refuses losses that cannot be averaged
sums/           sums over workers that a step computes with
backup/         steps that do without the workers that arrive last
"""
