"""Starts a whole cluster on this machine, and watches it: the command line.

    cli               `tfps run`, `tfps serve`: options in, exit code out
    job               one run: starts the tasks, forwards, reports, stops
    child_process     one task's process: start, output, signals, burial
    leash             runs inside the child: it dies with its launcher
    console           where lines go, and what a terminal needs around them
    terminal_relay    the chief's errors on their way to a terminal

These decide, without processes, threads or clock:

    plan              which processes a job has, with what command line
    terminal_line     bytes of a program -> lines, progress bars included
    tensorflow_noise  which lines of TensorFlow's nobody has to read
    labels            the coloured prefix of every line
    restarts          who is started again after a failure, and when
    stop_sequence     which signal to whom, and how long to wait for it
    endings           what an exit code means, in words

One thread does all of it: a loop that waits for output, signals and deaths.
"""
