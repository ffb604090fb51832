"""Training with bounded staleness: nobody runs far ahead of the slowest.

gate.py          the part of a step that runs on each worker
clocks.py        numbers of steps, and who may begin another one
keeper.py        the function by which a parameter server lets workers go on
shares.py        how many steps each member of a span makes
member_calls.py  the steps that members have made, and those they are in
bounded_span.py  some steps, with one call of each worker and parameter server
"""
