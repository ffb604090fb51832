"""Rehearsal of a training script: it runs until its first `fit`.

The script makes its strategy, model and input as it always does, on a small
cluster of this machine that has as many parameter servers as the plan. Large
variables get no values there, so tables may be larger than this machine. In
the place of training, the step of `fit` is traced, and the script ends.
"""

import contextlib
import dataclasses
import json
import os
import runpy
import sys
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NoReturn

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import spec
from tfps_plugin.cluster.local_cluster import LocalCluster
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.strategy import parameter_server_strategy
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)

_TF_CONFIG = "TF_CONFIG"
# Variables up to this size get their values, so that programs can look at them.
_MOST_FILLED_BYTES = 64 << 10
# Arguments of `fit` by which other code of the script would run.
_LEFT_OUT = ("callbacks", "validation_data", "validation_split")
_DEFAULT_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Rehearsed:
    """A model and its step, as the first `fit` of a script would run them.

    Attributes:
        strategy: The strategy of the model.
        model: The model; it is built, and so is its optimizer.
        step: The traced step of one batch, a concrete function.
        batch: The first batch of the input; None: it could not be read here.
        why_no_batch: The reason for that, or an empty text.
        chief_reads: Whether the chief reads the batches and sends them.
    """

    strategy: ParameterServerStrategy
    model: Any
    step: Any
    batch: Any
    why_no_batch: str
    chief_reads: bool


class _Over(BaseException):
    """The end of a rehearsal; no `except Exception` of a script catches it."""


class Rehearsal:
    """One run of a script until its first `fit`.

    Threading: one thread.
    """

    def __init__(self) -> None:
        """Begins before the script."""
        self._input: dict[str, Any] = {}
        self.rehearsed: Rehearsed | None = None

    def attach(self, strategy: ParameterServerStrategy) -> None:
        """Has a new strategy tell of `fit`, and fill no large variables.

        Args:
            strategy: The strategy.
        """
        strategy.rehearsal = self
        strategy.on_ps.most_filled_bytes = _MOST_FILLED_BYTES

    def begin(
        self, model: Any, method: str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Notes the input of a call that is about to begin.

        Args:
            model: The model.
            method: `fit`, `evaluate` or `predict`.
            arguments: The arguments of the call.

        Returns:
            Arguments that replace those of the call.

        Raises:
            PlanError: If the call is not `fit`.
        """
        if method != "fit":
            raise errors.PlanError(
                "The script uses weights before it trains, and a plan has "
                "none. Expected fit() as the first call of a model on the "
                f"cluster. Received: {method}() of the model {model.name!r}. "
                "Move it behind fit(), or plan with a script that ends in "
                "fit()."
            )
        self._input = arguments
        return {name: None for name in _LEFT_OUT if name in arguments} | (
            {"validation_split": 0.0} if "validation_split" in arguments else {}
        )

    def end(self, model: Any, step: Any) -> NoReturn:
        """Notes the step of a model, and ends the script.

        Args:
            model: The model.
            step: The traced step of one batch.
        """
        batch, why = None, ""
        try:
            batch = first_batch(self._input)
        except Exception as error:  # of the user's input
            why = f"{type(error).__name__}: {error}".splitlines()[0]
        self.rehearsed = Rehearsed(
            model.distribute_strategy,
            model,
            step,
            batch,
            why,
            not isinstance(self._input.get("x"), DatasetCreator),
        )
        raise _Over


def first_batch(arguments: dict[str, Any]) -> Any:
    """Returns the first batch of the input of `fit`.

    Args:
        arguments: The arguments of `fit`.

    Returns:
        A batch as the step takes it: `(x, y)`, for example.

    Raises:
        PlanError: If the input is of a kind that cannot be read twice.
    """
    x = arguments.get("x")
    if isinstance(x, DatasetCreator):
        x = x.get_tf_dataset()
    if isinstance(x, tf.data.Dataset):
        return next(iter(x))
    if isinstance(x, keras.utils.PyDataset):
        return x[0]
    if isinstance(x, Iterator):
        # Nobody reads it any more.
        return next(x)
    if not _is_made_of_arrays(x):
        raise errors.PlanError(
            "The input cannot be read for a plan. Expected a "
            "tfps.DatasetCreator, a tf.data.Dataset, a keras.utils.PyDataset, "
            "a generator or arrays. Received: "
            f"x of {type(x).__name__}"
        )
    parts = [x, arguments.get("y"), arguments.get("sample_weight")]
    while parts and parts[-1] is None:
        parts.pop()
    size = arguments.get("batch_size") or _DEFAULT_BATCH
    return tuple(
        tf.nest.map_structure(lambda each: tf.convert_to_tensor(each[:size]), p)
        for p in parts
    )


def _is_made_of_arrays(x: Any) -> bool:
    return all(hasattr(each, "shape") for each in tf.nest.flatten(x))


@contextlib.contextmanager
def rehearsing(
    script: str, arguments: Sequence[str], num_ps: int
) -> Iterator[Rehearsed]:
    """Context with what a script's first `fit` would run; ends its cluster.

    Args:
        script: Path of the script.
        arguments: Its arguments.
        num_ps: Number of parameter servers.

    Yields:
        The model and its step.

    Raises:
        PlanError: If the script ends without `fit`, or makes a strategy for a
            cluster of its own.
    """
    rehearsal = Rehearsal()
    hooks = parameter_server_strategy.construction_hooks
    with LocalCluster(num_workers=1, num_ps=num_ps) as cluster:
        addresses = cluster.cluster_spec.as_dict()

        def attach(strategy: ParameterServerStrategy) -> None:
            found = strategy.session.cluster.as_dict()[spec.PARAMETER_SERVER]
            if found != addresses[spec.PARAMETER_SERVER]:
                raise errors.PlanError(
                    "The script names a cluster of its own, so nothing can "
                    "be planned for another one. Expected "
                    "tfps.ParameterServerStrategy() without a cluster "
                    f"resolver. Received: a cluster with {len(found)} "
                    "parameter servers. Leave the resolver out: the strategy "
                    "then reads TF_CONFIG, or starts a cluster here."
                )
            rehearsal.attach(strategy)

        hooks.append(attach)
        try:
            with (
                _environment(addresses),
                _program(script, arguments),
                contextlib.suppress(_Over),
            ):
                _run(script)
        finally:
            hooks.remove(attach)
        if rehearsal.rehearsed is None:
            raise errors.PlanError(
                "The script has ended without training. Expected a call of "
                "model.fit() on a model that was made under strategy.scope() "
                f"of a tfps.ParameterServerStrategy. Received: {script}"
            )
        yield rehearsal.rehearsed


def _run(script: str) -> None:
    """Runs a script; its own end with success is one like any other."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


@contextlib.contextmanager
def _environment(addresses: dict[str, list[str]]) -> Iterator[None]:
    """Context in which a program is the chief of a cluster."""
    before = {n: os.environ.get(n) for n in (_TF_CONFIG, spec.FILE_VARIABLE)}
    os.environ.pop(spec.FILE_VARIABLE, None)
    os.environ[_TF_CONFIG] = json.dumps(
        {"cluster": addresses, "task": {"type": spec.CHIEF, "index": 0}}
    )
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _program(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Context in which a script finds its arguments and its neighbours."""
    before, path = list(sys.argv), list(sys.path)
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = before, path
