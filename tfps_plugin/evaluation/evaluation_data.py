"""What `model.evaluate` is given, again and again."""

import types
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.inputs.dataset_creator import DatasetCreator


def to_arguments(data: Any) -> dict[str, Any]:
    """The arguments of `model.evaluate` that stand for the data.

    Args:
        data: A dataset, a `keras.utils.PyDataset`, a `tfps.DatasetCreator`,
            arrays, or a tuple of them: `(x, y)` or `(x, y, sample_weight)`.
            A creator's function is called once, as for the only pipeline.

    Returns:
        `x` and, where it says so, `y` and `sample_weight`.

    Raises:
        InputError: If it is a generator, which can be read only once, or a
            tuple of another length.
    """
    if isinstance(data, DatasetCreator):
        return {"x": data.build(tf.distribute.InputContext())}
    if isinstance(data, types.GeneratorType):
        raise errors.InputError(
            "A generator can be read once, and every checkpoint is evaluated "
            f"on the same data. Received: data={data!r}. Give a "
            "tf.data.Dataset, a keras.utils.PyDataset or arrays."
        )
    if not isinstance(data, tuple):
        return {"x": data}
    if len(data) not in (1, 2, 3):
        raise errors.InputError(
            "A tuple must be (x, y) or (x, y, sample_weight). Received: data "
            f"with {len(data)} parts. Several inputs of a model are a list or "
            "a dict."
        )
    return dict(zip(("x", "y", "sample_weight"), data, strict=False))
