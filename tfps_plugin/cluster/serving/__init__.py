"""The process of a worker or parameter server.

task_server.py     the life of a worker or ps process
chief_watch.py     decides when a task ends itself (pure)
server_session.py  sessions with the server of a single task
mailbox.py         delivers messages: a queue on the task itself
report_board.py    what a task tells about itself: a text on the task
inbox.py           messages that tasks have posted to the chief
messages.py        messages between the chief and a task (pure)
job_pipe.py        pipe that tells an evaluator that the chief has ended
"""
