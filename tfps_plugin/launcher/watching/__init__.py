"""Views of a job that runs, for a terminal.

terminal_view   the state of a job as tables
quantities      pure: quantities as short texts
profiling       traces of tasks
"""
