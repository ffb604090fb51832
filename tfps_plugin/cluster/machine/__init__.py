"""A task and its machine: cores, threads, memory, ports.

Always:

server_threads.py   sizes of the thread pools of a task's server
usable_cores.py     number of cores that a process may use
ports.py            network ports reserved without a race; own address

Only if the user asks for it (docs/tuning_the_machine.md):

tuning.py           the switch, and what it changes in tasks
core_shares.py      division of a machine's cores among tasks
malloc_settings.py  settings of glibc's malloc
"""
