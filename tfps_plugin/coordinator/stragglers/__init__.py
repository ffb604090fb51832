"""Workers that are slower than the others.

rated_workers.py       the methods of the coordinator
worker_rates.py        pure: the rates of workers, by the kind of work
windows.py             pure: the latest calls of a worker, and its speed
comparison.py          pure: workers compared with each other
slow_worker_watch.py   reports each slow worker once
diagnosis.py           pure: reason why a worker is slow
network_probe.py       what a message from each parameter server takes
"""
