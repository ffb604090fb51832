"""Workers and parameter servers that come and go while a program trains.

elastic_workers.py  the methods of the coordinator that change its workers
elastic_ps.py       those that change its parameter servers
ps_moves.py         moves of variables between parameter servers
joining_ps.py       a parameter server that joins
safe_points.py      moments at which nothing of the program runs
departures.py       lets a worker end what it runs, and leave
attendant.py        the thread that lets workers go which are told to end
uses.py             workers that something needs until it has ended
follower.py         the thread that follows a cluster resolver
described_changes.py  pure: changes that its answer asks for
"""
