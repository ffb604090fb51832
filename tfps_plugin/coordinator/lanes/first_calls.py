"""Has a function run alone on a worker the first time.

TensorFlow prepares a function on a worker with its first call there, and with
the first after any change of the cluster. The list that it keeps of a worker's
prepared functions may move in memory meanwhile, and it reads an entry of that
list without a lock whenever it runs a part of a function on another task
(`EagerClusterFunctionLibraryRuntime::Run`): a call that runs beside a first
call may send garbage ("Unable to parse request"), or take its worker down.

Two that prepare one function at the same time, after a parameter server has
come back, may find it half prepared there: one was seen to fail ("Could not
find function library"), the other one to wait for ever.

What `fit` runs and what is scheduled as a `tf.function` is seen to. A scheduled
Python callable that calls functions of its own is not: nobody knows of them.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from collections.abc import Collection
from typing import Any
from typing import TypeVar

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.present_call import PresentCall
from tfps_plugin.cluster.calls.turns import Turns

T = TypeVar("T")
# The generation of a worker, and of the cluster, that a function ran in last.
_Prepared = weakref.WeakKeyDictionary[Turns, tuple[int, int]]

_lock = threading.Lock()
_prepared: weakref.WeakKeyDictionary[Any, _Prepared] = (
    weakref.WeakKeyDictionary()
)


def alone(
    function: Callable[..., T], parameter_servers: Collection[int] = ()
) -> Callable[..., T]:
    """A function of workers that is alone where it is called first.

    Args:
        function: A concrete function.
        parameter_servers: The indices of those that hold what it works on.

    Returns:
        What calls it. On a lane, the first call in each life of a worker,
        and after each change of the cluster, waits until no other such
        function runs there, and others wait for it.

    Threading: may be called from any thread. `_lock` guards what is known of
    all functions.
    """
    with _lock:
        prepared = _prepared.setdefault(function, weakref.WeakKeyDictionary())

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> T:
        context = dispatch_context.current()
        if context is None or context.turns is None:
            return function(*args, **kwargs)
        life = context.generation, context.num_changes
        with _lock:
            is_first = prepared.get(context.turns) != life
        present = context.call or PresentCall()
        with (
            context.turns.turn(alone=is_first),
            present.needing(parameter_servers),
        ):
            result = function(*args, **kwargs)
        if is_first:
            with _lock:
                prepared[context.turns] = life
        return result

    return call
