"""How much to send to the workers at a time.

packing.py          pure: how many steps to a call
calls_in_flight.py  pure: how many calls a worker runs at a time
loss_course.py      pure: whether the training loss falls fast, or jumps
loss_reports.py     the losses behind what steps report
"""
