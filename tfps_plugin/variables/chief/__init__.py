"""Reads of the chief, and what they wait for.

chief_reads.py      reads that go on when the cluster changes under them
recovery_gate.py    where the chief waits while lost ps are brought back
steps_in_flight.py  what the chief waits for before it looks at the model
"""
