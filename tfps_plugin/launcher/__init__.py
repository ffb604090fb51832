"""The command line: starts a whole cluster on this machine and watches it.

    cli               the command line, `tfps`
    commands/         its commands, a module each: options in, exit code out
    job               one run: starts the tasks, forwards, reports, stops
    relayed_task      one task whose every line is written as JSON
    arriving_signals  signals, as a selector waits for them
    child_process     the process of one task: start, output, signals, end
    leash             runs inside the child, which then dies with its launcher
    scaling           a job whose numbers of tasks change
    control_socket    the socket by which another terminal asks for that
    watching/         views of a job that runs
    terminal_relay    a terminal between the chief's errors and the real one

These decide, without processes, threads or a clock:

    process_plan      the processes of a job and their command lines
    task_range        the numbers of tasks that a job may have, and is to have
    restarts          the tasks to start again after a failure, and when
    stop_sequence     the signals that end a job, and the waits between them
    endings           exit codes in words

`cluster/output/` shows the lines that tasks write. One thread does everything:
a loop that waits for output, signals and deaths.
"""
