"""State of a job over HTTP: the chief serves it, viewers ask.

state_server   the serving end: a Unix socket of this machine, and a port
state_client   the asking end
job_sockets    the sockets of the jobs that run on this machine
"""
