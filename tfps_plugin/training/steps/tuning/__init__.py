"""Amount of work to send to the workers at a time.

packing.py          pure: number of steps of a call
calls_in_flight.py  pure: number of calls that a worker runs at a time
loss_course.py      pure: tells if the training loss falls fast, or jumps
loss_reports.py     derives recent losses from the reports of steps
"""
