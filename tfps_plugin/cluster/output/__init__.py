"""Output of tasks, and the part of it that users see.

console.py           merges the lines of all tasks, with labels
terminal_line.py     bytes of a program -> lines, progress bars included (pure)
tensorflow_noise.py  detects log lines of TensorFlow without use (pure)
task_lines.py        selects the lines of tasks that users see (pure)
followed_logs.py     shows these lines while the tasks write them
json_lines.py        lines as JSON (pure)
stderr_filter.py     standard error of this process, without that noise
progress_line.py     progress of the start of a cluster, on a terminal
"""
