"""Living objects of given classes, from Python's garbage collector."""

import gc
import itertools
from typing import Any


def instances_of(*bases: type) -> list[Any]:
    """Returns the living instances of classes and of their subclasses.

    `for each in gc.get_objects()` has a fault where other threads run: the list
    refers to everything, so also to a tuple that another thread is just making
    from a generator. Nobody else may refer to such a tuple: that thread fails
    with `SystemError: bad argument to internal function`. The references here
    last no longer than one call of C code, in which no other thread runs.

    Args:
        *bases: Classes written in Python; the collector follows no reference
            from an instance to a class that is written in C.

    Threading: any thread.
    """
    # Not isinstance, which would read the class of proxies.
    everything = itertools.chain.from_iterable(map(gc.get_objects, (None,)))
    classes = {
        each for each in list(map(type, everything)) if issubclass(each, bases)
    }
    if not classes:
        # `get_referrers` of nothing is nothing, after a walk through all.
        return []
    return [
        each for each in gc.get_referrers(*classes) if type(each) in classes
    ]
