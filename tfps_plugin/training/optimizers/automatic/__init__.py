"""Tables that are small enough to be updated whole.

automatic_updates.py  which tables are small enough to be updated whole
update_costs.py       pure: tables of which that costs little of a step
ps_speed.py           measures how fast a ps updates
"""
