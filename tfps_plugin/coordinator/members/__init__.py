"""Membership of the cluster, and losses of tasks.

membership.py          the workers that may run closures
membership_thread.py   the one thread that changes who is in the cluster
roster.py              pure: present and absent workers, when to probe again
no_worker_deadline.py  pure: when to give up because no worker is left
failures.py            pure: the tasks that an exception points at
failure_examiner.py    finds the lost task behind a failed closure
inspector.py           probes tasks
watchdog.py            gives up silent tasks and hanging calls
stall_detector.py      pure: when a task or a call has stalled
pinned_workers.py      holds calls back whose other workers are away
kept_workers.py        other workers of one run, which do not leave meanwhile
presence.py            methods that tell which tasks take part
ps_recovery.py         recovers lost parameter servers
"""
