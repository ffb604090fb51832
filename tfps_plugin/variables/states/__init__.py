"""States that a step assigns, and rules to merge the workers' values.

merge_rule.py    pure: the rules: sum, maximum, minimum, last, ...
aggregations.py  the rules that TensorFlow's aggregations require
merging.py       merges values of a state
flow.py          data flow from reads of variables to the writes of a step
combining.py     puts together what the parts of one step assign
copies.py        the states of which every lane has a copy
local_rules.py   the rule of a metric state, from the operations that assign it
ps_rules.py      states on parameter servers that several workers would spoil
sync_rules.py    states that workers cannot put together in a synchronous step
"""
