"""Arguments of the evaluator: their checks, and the data in Keras's form."""

import os
import types
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.evaluation.export_best import ExportBest
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)


def of_data(data: Any) -> dict[str, Any]:
    """Returns the arguments of `model.evaluate` for the data.

    Args:
        data: A dataset, a `keras.utils.PyDataset`, a `tfps.DatasetCreator`,
            arrays, or a tuple of them: `(x, y)` or `(x, y, sample_weight)`.
            A creator's function is called once, as for the only pipeline.

    Returns:
        `x` and, from a tuple, `y` and `sample_weight`.

    Raises:
        InputError: If it is a generator, which can be read only once, or a
            tuple of another length.
    """
    if isinstance(data, DatasetCreator):
        return {"x": data.build(tf.distribute.InputContext())}
    if isinstance(data, types.GeneratorType):
        raise errors.InputError(
            "Every checkpoint is evaluated on the same data, but a generator "
            "can be read only once. Expected data that can be read again. "
            f"Received: data={data!r}. Pass a tf.data.Dataset, a "
            "keras.utils.PyDataset or arrays."
        )
    if not isinstance(data, tuple):
        return {"x": data}
    if len(data) not in (1, 2, 3):
        raise errors.InputError(
            "A tuple of data must be (x,), (x, y) or (x, y, sample_weight). "
            f"Received: data with {len(data)} parts. Pass several inputs of "
            "a model as a list or a dict."
        )
    return dict(zip(("x", "y", "sample_weight"), data, strict=False))


def require_plain_and_compiled(model: Any) -> None:
    """Refuses a model that cannot be evaluated beside the training.

    Raises:
        UnsupportedError: If it was created under a `ParameterServerStrategy`.
        InputError: If it is not compiled.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if isinstance(strategy, ParameterServerStrategy):
        raise errors.UnsupportedError(
            "An evaluator takes no part in the cluster, but its model was "
            "created under a ParameterServerStrategy. Expected a plain Keras "
            f"model. Received: model={model.name!r}. Create it outside "
            "strategy.scope()."
        )
    if not model.compiled:
        raise errors.InputError(
            "The evaluator's model needs a loss or metrics. Received: "
            f"model={model.name!r}, which is not compiled. Call "
            "model.compile(loss=..., metrics=[...])."
        )


def require_outside(export_best: ExportBest, checkpoint_dir: str) -> None:
    """Refuses an export into the folder of checkpoints.

    Raises:
        InputError: If the export would be taken for a checkpoint.
    """
    folder = os.path.dirname(os.path.abspath(export_best.path))
    if os.path.realpath(folder) == os.path.realpath(checkpoint_dir):
        raise errors.InputError(
            "The exported model would be taken for a checkpoint. Expected a "
            "path outside the folder of checkpoints. Received: "
            f"export_best.path={os.fspath(export_best.path)!r}, "
            f"checkpoint_dir={checkpoint_dir!r}. Export it to another folder."
        )
