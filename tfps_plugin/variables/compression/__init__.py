"""Compression of what travels between workers and parameter servers.

wire.py            rounds values to fewer bits on the way
quantization.py    quantizes rows to int8, with a scale for each row
error_feedback.py  adds a gradient's rounding error to the next gradient
"""
