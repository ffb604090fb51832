"""Measurements; none of them is a test.

chief_memory.py   what the chief needs to create a large sharded table
"""
