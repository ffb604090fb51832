"""Values that travel in fewer bits.

wire.py               rounds what travels to fewer bits
quantization.py    quantizes rows to int8, with a scale for each row
error_feedback.py  adds a gradient's rounding error to the next gradient
"""
