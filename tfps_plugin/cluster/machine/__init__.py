"""Settings of the machine: memory, cores, ports.

freed_memory.py    keeps memory that a step has freed for the next one
large_pages.py     has tasks keep tensors in large pages of memory
shared_cores.py    how tasks of one machine share its cores
server_threads.py  how many threads a task's server computes with
ports.py           network ports reserved without a race; own address
"""
