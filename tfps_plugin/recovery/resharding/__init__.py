"""Variables for another number of parameter servers.

layout_plan.py    which shards there are, and where (pure)
traffic_plan.py   places by how much is read and written there (pure)
families.py       variables that have to stay together
variable_move.py  one variable, with the copies that take its place
moved_rows.py     rows that are copied while others change them
moves.py          all variables of a strategy
traffic_placement.py  the thread that places variables by traffic
resharder.py      what the coordinator asks for moves
"""
