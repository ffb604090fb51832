"""Lists the files that one id of an Embedding crosses from `fit` to its ps.

    python -m integration_tests.benchmarks.id_path

A model with one Embedding is trained for two steps on two parameter servers. A
file of this library counts if a function of it is on the stack while an
operation on ids is created, or while a step is sent to a worker. Ids are the
only numbers of 16 bits in the program. Integers that are computed from them
count, too: local row numbers, counts, positions. Rows and gradients do not.
"""

import collections
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin._compat.runtime import tensorflow_execution

_BATCH = 8
# Names of the threads that send steps to workers.
_LANES = "tfps-worker"
_FOLDER = os.path.dirname(tfps.__file__) + os.sep


class IdPath:
    """The files, with the functions in them that handle ids.

    Attributes:
        functions: By file, the names of its functions.
    """

    def __init__(self) -> None:
        """Begins with no file."""
        self.functions: dict[str, set[str]] = collections.defaultdict(set)
        self._of_ids: set[tuple[tf.Graph, str]] = set()

    def add_stack(self) -> None:
        """Adds the functions of this library that are on the stack."""
        for frame in _frames(sys._getframe(1)):
            path = frame.f_code.co_filename
            if path.startswith(_FOLDER):
                file = path.removeprefix(_FOLDER)
                self.functions[file].add(frame.f_code.co_qualname)

    def add_operation(self, operation: tf.Operation) -> None:
        """Adds the stack if an operation that was just created has ids."""
        has_ids = any(map(self._is_of_ids, operation.inputs))
        for tensor in operation.outputs:
            if tensor.dtype == tf.int16 or (
                has_ids and tensor.dtype.is_integer
            ):
                self._of_ids.add((tensor.graph, tensor.name))
                has_ids = True
        if has_ids:
            self.add_stack()

    def _is_of_ids(self, tensor: tf.Tensor) -> bool:
        return (tensor.graph, tensor.name) in self._of_ids


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _observe(path: IdPath) -> None:
    """Observes the operations that TensorFlow creates, and its calls."""
    create = tensorflow_graphs.FuncGraph._create_op_internal
    call = tensorflow_execution.context.Context.call_function

    def create_and_tell(*args: Any, **kwargs: Any) -> tf.Operation:
        operation = create(*args, **kwargs)
        path.add_operation(operation)
        return operation

    def tell_and_call(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name.startswith(_LANES):
            path.add_stack()
        return call(*args, **kwargs)

    tensorflow_graphs.FuncGraph._create_op_internal = create_and_tell
    tensorflow_execution.context.Context.call_function = tell_and_call


def main() -> None:
    """Trains, and prints the files."""
    path = IdPath()
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((2,), dtype="int16"),
                    keras.layers.Embedding(100, 4),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("adam", "mse")
        ids = np.zeros((2 * _BATCH, 2), np.int16)
        _observe(path)
        model.fit(ids, np.zeros((len(ids), 1)), batch_size=_BATCH, verbose=0)
    for file in sorted(path.functions):
        print(f"{file}: {', '.join(sorted(path.functions[file]))}")
    print(f"{len(path.functions)} files")


if __name__ == "__main__":
    main()
