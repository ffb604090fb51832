"""States that a step assigns, and how workers' values are put together.

merge_rule.py    pure: the rules: sum, maximum, minimum, last, ...
aggregations.py  the rules that TensorFlow's aggregations ask for
merging.py       puts values of a state together
flow.py          what a traced step writes, and which reads flow into it
copies.py        the states of which every lane has a copy
local_rules.py   the rule of a metric state, from the operations that assign it
ps_rules.py      states on parameter servers that several workers would spoil
"""
