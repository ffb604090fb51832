"""The process of a worker or parameter server.

task_server.py  the life of a worker or ps process
chief_watch.py  when does a task end itself? (pure)
mailbox.py      carries these messages: a queue on the task itself
messages.py     what the chief tells a task (pure)
job_pipe.py     how an evaluator learns that the chief has ended
"""
