"""Tables that are small enough to be updated whole.

automatic_updates.py  chooses the tables of an optimizer to update whole
update_costs.py       pure: selects tables whose whole update is cheap
ps_speed.py           measures how fast a ps updates
"""
