"""Tables larger than the memory of parameter servers.

tiered_storage.py  pure: the option of a table, and its checks
storage_by_path.py pure: the option of a strategy, for variables by their paths
on_disk.py         variables whose memory is on the disk of their ps
allocation.py      memory of variables that get their values row by row
"""
