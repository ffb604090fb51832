"""Steps that do without the workers that arrive last.

referee.py           decides whose gradients count in a step
refereed_applier.py  applies the gradients that count
late_gradients.py    counts those that came too late
"""
