"""Tests that stand-ins refuse every use of a lost object."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime.tensorflow_lost import LostTensor


def _lost(dtype: tf.DType) -> Any:
    return LostTensor(dtype, "a thing of 3", "Make another thing.")


def _iterator() -> Any:
    iterator = iter(tf.data.Dataset.range(3))
    iterator._iterator_resource = _lost(tf.resource)
    return iterator


def _dataset() -> Any:
    dataset = tf.data.Dataset.range(3)
    dataset._variant_tensor_attr = _lost(tf.variant)
    return dataset


def _take(each: Any) -> Any:
    return next(each)


def _capturing() -> Any:
    iterator = _iterator()
    return tf.function(lambda: next(iterator))


_USES: dict[str, Callable[[], Any]] = {
    "next": lambda: next(_iterator()),
    "get_next": lambda: _iterator().get_next(),
    "optional": lambda: _iterator().get_next_as_optional(),
    "argument": lambda: tf.function(_take)(_iterator()),
    "captured": lambda: _capturing()(),
    "iter": lambda: iter(_dataset()),
    "batch": lambda: _dataset().batch(2),
    "cardinality": lambda: _dataset().cardinality(),
    "zip": lambda: tf.data.Dataset.zip((_dataset(), _dataset())),
    "in a function": lambda: tf.function(lambda: _dataset().take(1))(),
    "copy": lambda: tf.convert_to_tensor(copy.deepcopy(_lost(tf.resource))),
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
def test_every_use_names_the_object_and_the_way_out(
    use: Callable[[], Any],
) -> None:
    with pytest.raises(errors.UnsupportedError) as raised:
        use()
    message = str(raised.value)
    assert "Received: a thing of 3. Make another thing." in message


def test_what_a_dataset_is_can_still_be_asked() -> None:
    dataset = _dataset()
    assert dataset.element_spec == tf.TensorSpec([], tf.int64)
    assert "element_spec" in repr(dataset)
