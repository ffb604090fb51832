"""Ids of rows: any int64, or strings.

keys.py        ids of one table, or of several that are stacked
id_hashing.py  buckets of ids, and random numbers that depend on them
string_ids.py  strings as ids
"""
