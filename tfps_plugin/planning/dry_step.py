"""A dry run of the part of a step that runs on its worker.

What comes from a parameter server is replaced by numbers of the right shape, so
the run needs no tables. It tells how long a worker computes, and the size of
everything that travels for one batch, lookups of rows included.
"""

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.planning.cut_step import CutStep
from tfps_plugin.planning.cut_step import fed
from tfps_plugin.planning.work import PsWork

# What stands for a weight; zeros would make some computations cheaper.
_WEIGHT = 0.01
_LEAST_RUNS = 3
_MOST_RUNS = 500


@dataclasses.dataclass(frozen=True)
class DryRun:
    """The sizes of one step, and the time of its worker's part.

    Attributes:
        ps: The work of each parameter server, by its index.
        seconds: Time of the worker's part, the median; None: not measured.
        cpu_seconds: Processor time of that, on all cores, likewise.
        rows: Number of rows that are looked up on all parameter servers.
        lookups: Number of lookups, each in a shard of a table.
    """

    ps: Mapping[int, PsWork]
    seconds: float | None
    cpu_seconds: float | None
    rows: int
    lookups: int


class DryStep:
    """Runs of the worker's part of a step.

    Threading: one thread.
    """

    def __init__(self, cut: CutStep, threads: int = 0) -> None:
        """Prepares the runs.

        Args:
            cut: The step.
            threads: Number of threads of an operation; 0: one for each core.
        """
        self._cut = cut
        self._definition = cut.definition()
        self._config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads, device_count={"GPU": 0}
        )
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(self._definition, name="")
        self._session = tf.compat.v1.Session(graph=graph, config=self._config)
        self._rows_of: dict[str, int] = {}

    def close(self) -> None:
        """Ends its session."""
        self._session.close()

    def run(self, seconds: float) -> DryRun:
        """Runs the worker's part.

        Args:
            seconds: About how long to measure; 0 measures no time.

        Returns:
            The sizes and the time.

        Raises:
            PlanError: If the size of something that arrives is unknown.
        """
        cut = self._cut
        known: dict[str, Any] = dict(cut.feeds)
        self._fill_arriving(known)
        work = {}
        servers = cut.parameter_servers()
        for place in servers:
            sent = self._values(cut.leaving[place].values(), known)
            gotten = [
                known[name]
                for name, tensor in cut.arriving.items()
                if cut.place(tensor.op) == place and name not in cut.not_sent
            ]
            index = tf.DeviceSpec.from_string(place).task or 0
            work[index] = PsWork(
                bytes_in=sum(each.nbytes for each in sent),
                bytes_out=sum(each.nbytes for each in gotten),
                elements=self._elements_on(place, known),
            )
        rows = [
            number
            for name, number in self._rows_of.items()
            # A worker looks up in its cache, too, which is empty here.
            if name not in cut.not_sent
            and cut.place(cut.arriving[name].op) in servers
        ]
        took, cpu = self._time(known, seconds) if seconds else (None, None)
        return DryRun(work, took, cpu, sum(rows), len(rows))

    def _name(self, tensor: tf.Tensor) -> str:
        """Returns the name of a tensor of the step in a graph of ours."""
        name: str = tensor.name
        if name in self._cut.feeds or name in self._cut.arriving:
            return f"{fed(name)}:0"
        return name

    def _values(
        self, tensors: Iterable[tf.Tensor], known: Mapping[str, Any]
    ) -> list[np.ndarray]:
        fetched: list[np.ndarray] = self._session.run(
            [self._name(each) for each in tensors],
            {f"{fed(name)}:0": value for name, value in known.items()},
        )
        return fetched

    def _fill_arriving(self, known: dict[str, Any]) -> None:
        """Gives everything that arrives a value of the right shape.

        The number of rows that a lookup returns is that of the row numbers
        which the worker sends for it.
        """
        waiting = dict(self._cut.arriving)
        for name, tensor in [*waiting.items()]:
            if tensor.shape.is_fully_defined():
                shape = tensor.shape.as_list()
                if name in self._cut.tokens:
                    shape[0] = 0
                known[name] = _stand_in(tensor, shape)
                del waiting[name]
        while waiting:
            ready = {
                name: origin
                for name, tensor in waiting.items()
                if (origin := self._cut.origin(tensor)) is not None
                and self._cut.needs(origin) <= known.keys()
            }
            if not ready:
                names = ", ".join(sorted(waiting)[:3])
                raise errors.PlanError(
                    "The size of some values that parameter servers send is "
                    f"unknown before they run. Received: {names}"
                )
            values = self._values(ready.values(), known)
            for name, value in zip(ready, values, strict=True):
                tensor = waiting.pop(name)
                rows = value.shape[0] if value.ndim else 1
                self._rows_of[name] = rows
                shape = tensor.shape.as_list()
                known[name] = _stand_in(
                    tensor, [rows if n is None else n for n in shape]
                )

    def _elements_on(self, place: str, known: Mapping[str, Any]) -> int:
        """Returns the numbers that a parameter server computes for a step."""
        origins: dict[str, tf.Tensor] = {}
        total = 0
        for operation in self._cut.graph.get_operations():
            if self._cut.place(operation) != place:
                continue
            for output in operation.outputs:
                if output.dtype in (tf.resource, tf.variant):
                    continue
                if output.shape.is_fully_defined():
                    total += output.shape.num_elements()
                elif (origin := self._cut.origin(output)) is not None:
                    origins[output.name] = origin
        rows = self._values(origins.values(), known)
        for name, value in zip(origins, rows, strict=True):
            shape = self._cut.graph.get_tensor_by_name(name).shape.as_list()
            count = value.shape[0] if value.ndim else 1
            total += int(np.prod([count if n is None else n for n in shape]))
        return total

    def _time(
        self, known: Mapping[str, Any], seconds: float
    ) -> tuple[float, float]:
        """Returns the median seconds of the worker's part, and those of CPU."""
        leaving = (
            tensor
            for tensors in self._cut.leaving.values()
            for tensor in tensors.values()
        )
        wanted = {
            self._name(each): each for each in (*self._cut.kept, *leaving)
        }
        graph = tf.Graph()
        with graph.as_default():
            # Variables, because to feed values would take time, and constants
            # would be computed with only once.
            values = {
                f"{fed(name)}:0": tf.compat.v1.Variable(
                    value, use_resource=True, validate_shape=False
                ).read_value()
                for name, value in known.items()
            }
            computed = tf.import_graph_def(
                self._definition,
                input_map=values,
                return_elements=[*wanted],
                name="",
            )
            begin = tf.compat.v1.global_variables_initializer()
        with tf.compat.v1.Session(graph=graph, config=self._config) as session:
            session.run(begin)
            # Fetched, because TensorFlow leaves out what nobody takes.
            return _measured(session.make_callable(computed), seconds)


def _measured(step: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Returns the median seconds of a function, and those of CPU."""
    step()  # which prepares it
    times: list[float] = []
    cpu: list[float] = []
    began = time.perf_counter()
    while len(times) < _LEAST_RUNS or (
        len(times) < _MOST_RUNS and time.perf_counter() - began < seconds
    ):
        start, cpu_start = time.perf_counter(), time.process_time()
        step()
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    return float(np.median(times)), float(np.median(cpu))


def _stand_in(tensor: tf.Tensor, shape: list[int]) -> np.ndarray:
    """Returns an array in the place of what another task sends."""
    dtype = tensor.dtype.as_numpy_dtype
    if tensor.dtype.is_floating:
        return np.full(shape, _WEIGHT, dtype)
    return np.ones(shape, dtype)
