"""Tables larger than the memory of parameter servers.

tiered_storage.py  pure: the option, and its checks
on_disk.py         variables whose memory is on the disk of their ps
allocation.py      memory of variables that get their values row by row
"""
