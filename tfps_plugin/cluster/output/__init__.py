"""What tasks write, and what people see of it.

console.py           where the lines of all tasks come together
labels.py            the prefix that says which task a line is of (pure)
terminal_line.py     bytes of a program -> lines, progress bars included (pure)
tensorflow_noise.py  which lines of TensorFlow's nobody has to read (pure)
task_lines.py        which lines of a task's log its chief's user sees (pure)
followed_logs.py     shows them while the tasks write them
progress_line.py     how far the start of a cluster is, on a terminal
"""
