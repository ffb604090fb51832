"""Variables on this process's own device, for tests of this package.

Making the first one applies the patches that variables need.
"""

from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.sharding.layout import RowLayout

LOCAL_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def lane(index: int) -> AbstractContextManager[None]:
    """Makes this thread a lane; each lane is on a worker of its own."""
    return dispatch_context.dispatching(
        DispatchContext(
            worker_index=index,
            lane_index=index,
            generation=1,
            device=LOCAL_DEVICE,
        )
    )


def remote_variable(value: Any, **options: Any) -> RemoteVariable:
    """Returns a whole variable with the given value."""
    patches.apply(patch_table.VARIABLES)
    value = tf.convert_to_tensor(value)
    variable = RemoteVariable(
        LOCAL_DEVICE, value.shape, value.dtype, "variable", **options
    )
    variable.assign(value)
    return variable


def sharded_variable(value: Any, num_shards: int) -> ShardedVariable:
    """Returns a table with the given value."""
    value = tf.convert_to_tensor(value)
    table = _empty(value.shape, value.dtype, num_shards)
    table.assign(value)
    return table


def initialized_table(
    initializer: keras.initializers.Initializer,
    shape: tuple[int, ...],
    num_shards: int,
    dtype: str = "float32",
) -> ShardedVariable:
    """Returns a table that a Keras initializer fills shard by shard."""
    table = _empty(tf.TensorShape(shape), tf.as_dtype(dtype), num_shards)
    described = initialization.InitialValue(
        tf.TensorShape(shape),
        tf.as_dtype(dtype),
        lambda: initializer(shape, dtype=dtype),
        initializer,
    )
    initialization.fill_shards(
        table.variables, table.layout, described, "table"
    )
    return table


def _empty(
    shape: tf.TensorShape, dtype: tf.DType, num_shards: int
) -> ShardedVariable:
    patches.apply(patch_table.VARIABLES)
    layout = RowLayout.even(shape[0], num_shards)
    shards = [
        RemoteVariable(
            LOCAL_DEVICE,
            tf.TensorShape([len(layout.rows(i))]).concatenate(shape[1:]),
            dtype,
            f"table/part_{i}",
        )
        for i in range(num_shards)
    ]
    return ShardedVariable(shards, layout, "table")
