"""Files of TensorBoard's callback, and checks that they are plausible."""

import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# By run and tag, each step and its value.
Events = dict[str, dict[str, list[tuple[int, np.ndarray]]]]


def read(folder: pathlib.Path) -> Events:
    """Reads all events in a folder.

    Args:
        folder: The callback's folder.
    """
    found: Events = {}
    for path in sorted(folder.rglob("*tfevents*")):
        tags = found.setdefault(str(path.parent.relative_to(folder)), {})
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                tags.setdefault(value.tag, []).append(
                    (event.step, tf.make_ndarray(value.tensor))
                )
    return found


def observed(
    folder: pathlib.Path, model: keras.Model, history: dict[str, list[Any]]
) -> Any:
    """Checks the events, and returns those that one process has to share.

    Args:
        folder: The callback's folder.
        model: The model that was trained.
        history: The result of `fit`.
    """
    # Names of weights in Keras 3.15 and in Keras 3.12; several weights have the
    # same name.
    sizes: dict[str, set[int]] = {}
    for layer in model.layers:
        for weight in layer.weights:
            for name in (weight.path, weight.name):
                found = sizes.setdefault(name.replace(":", "_"), set())
                found.add(int(np.prod(weight.shape)))
    outcome: dict[str, dict[str, Any]] = {}
    for run, tags in read(folder).items():
        outcome[run] = {}
        for tag, written in sorted(tags.items()):
            weight, _, kind = tag.rpartition("/")
            if kind == "histogram":
                seen: Any = [
                    (step, _outline(value, sizes[weight]))
                    for step, value in written
                ]
            elif kind == "image":
                seen = [(step, _size(value)) for step, value in written]
            elif tag == "keras":
                seen = [step for step, _ in written]
            else:
                seen = _scalars(run, tag, written, history)
            outcome[run][tag] = seen
    return outcome


def _outline(histogram: np.ndarray, sizes: set[int]) -> list[float]:
    """Returns a histogram's bounds and its number of elements."""
    lefts, rights, counts = histogram.T
    assert counts.sum() in sizes
    # If all elements are equal, the bounds are symmetric around them.
    middle = lefts[0] + rights[-1]
    assert abs(middle) > 1e-6, "the weights are all zero"
    return [float(lefts[0]), float(rights[-1]), float(counts.sum())]


def _size(image: np.ndarray) -> list[int]:
    """Returns width and height of the only image."""
    width, height, encoded = image
    shape = tf.io.decode_png(encoded).shape
    assert shape[:2] == (int(height), int(width))
    return [int(width), int(height)]


def _scalars(
    run: str,
    tag: str,
    written: list[tuple[int, np.ndarray]],
    history: dict[str, list[Any]],
) -> Any:
    assert all(np.isfinite(value) for _, value in written), tag
    if tag.startswith("batch_"):
        # Logs of batches lag: the first of them have none.
        return [step for step, _ in written[-1:]]
    name = tag.removeprefix("epoch_")
    in_history = f"val_{name}" if run == "validation" else name
    if in_history in history:
        # If only every n-th batch is written, not every epoch is.
        expected = [history[in_history][epoch] for epoch, _ in written]
        values = [float(value) for _, value in written]
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    if run == "validation" or name == "learning_rate":
        # These are measured on equal weights.
        return [(step, float(value)) for step, value in written]
    return [step for step, _ in written]
