"""Starts a whole cluster on this machine, and watches it: the command line.

    cli               `tfps run`, `tfps serve`: options in, exit code out
    job               one run: starts the tasks, forwards, reports, stops
    child_process     one task's process: start, output, signals, burial
    leash             runs inside the child: it dies with its launcher
    terminal_relay    the chief's errors on their way to a terminal

These decide, without processes, threads or clock:

    plan              which processes a job has, with what command line
    restarts          who is started again after a failure, and when
    stop_sequence     which signal to whom, and how long to wait for it
    endings           what an exit code means, in words

What becomes of the lines that tasks write is in `cluster/output/`.
One thread does all of it: a loop that waits for output, signals and deaths.
"""
