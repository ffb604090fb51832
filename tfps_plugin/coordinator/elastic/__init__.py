"""Workers that join and leave while a program trains.

elastic_workers.py  the methods of the coordinator
departures.py       lets a worker end what it runs, and leave
attendant.py        the thread that lets workers go which are told to end
uses.py             workers that something needs until it has ended
follower.py         the thread that follows a cluster resolver
described_changes.py  pure: changes that its answer asks for
"""
