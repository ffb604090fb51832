"""Gathers what a running job is, and lets others see it.

    monitor          the state of one strategy's job: `tfps.cluster_state`
    gathering        the parts of that state, from the objects that know them
    held_tables      what each parameter server holds
    task_reports     what tasks tell about themselves, asked for in parallel
    slow_question    what reads of workers tell, which may hang
    state_endpoint   the sockets at which a chief tells the state

`monitoring/` has the values, and what shows them in other processes.
"""
