"""Values that travel in fewer bits.

wire.py               rounds what travels to fewer bits
row_codes.py          pure: rows of floats as one byte a number
gradient_residual.py  what rounding left off a gradient, kept for the next
"""
