"""The base classes of a `tf.distribute.Strategy` and its values; its scopes.

`tf.distribute.Strategy` is public; the methods that a subclass must implement
are not.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from tensorflow.python.distribute import distribute_lib
from tensorflow.python.framework import composite_tensor
from tensorflow.python.framework import ops

# run() and non-slot updates live in V1 of the extended class; with V2,
# Strategy.run fails.
StrategyExtended = distribute_lib.StrategyExtendedV1
ReplicaContext = distribute_lib.ReplicaContext
UpdateContext = distribute_lib.UpdateContext

# The class of values that functions take apart into tensors.
CompositeTensor = composite_tensor.CompositeTensor

# These scopes determine who creates lookup tables.
resource_creator_scope = ops.resource_creator_scope


def resource_creators() -> Any:
    """Returns this thread's table creators, for `resource_creators_scope`."""
    return ops.get_default_graph()._resource_creator_stack


def strategy_of(variable: Any) -> Any:
    """Returns the strategy that a variable was created under, or None."""
    return getattr(variable, "_distribute_strategy", None)


def set_strategy(variable: Any, strategy: Any) -> None:
    """Records the strategy that a variable was created under."""
    variable._distribute_strategy = strategy


def is_in_update() -> bool:
    """Returns whether this thread is in an `UpdateContext`.

    Used since TensorFlow 2.20: `distribute_lib.get_update_replica_id`.
    """
    return distribute_lib.get_update_replica_id() is not None


@contextlib.contextmanager
def resource_creators_scope(creators: Any) -> Iterator[None]:
    """Replaces the present creators of lookup tables.

    A function that is being traced inherits the creators of variables from its
    caller, but not those of tables.
    """
    graph = ops.get_default_graph()
    previous = graph._resource_creator_stack
    graph._resource_creator_stack = creators
    try:
        yield
    finally:
        graph._resource_creator_stack = previous
