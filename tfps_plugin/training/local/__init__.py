"""Rounds of local steps: a worker reads weights and sends gradients seldom.

lengths.py      pure: numbers of steps that are whole rounds
plan.py         reads and updates that a round makes once
accrual.py      gradients of local steps: summed, and applied to local weights
local_rounds.py rounds of steps as functions of a worker
"""
