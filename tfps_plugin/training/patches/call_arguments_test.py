"""Numbers that Keras never checks are checked before anything runs."""

from typing import Any

import numpy as np
import pytest

from tfps_plugin import errors
from tfps_plugin.training.patches import call_arguments


@pytest.mark.parametrize("name", ["steps_per_epoch", "validation_steps"])
@pytest.mark.parametrize("value", [None, 0, -1])
def test_no_number_of_steps_means_all_input(name: str, value: Any) -> None:
    assert call_arguments.checked("fit", {name: value}) == {name: None}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("steps_per_epoch", 3, 3),
        ("steps", np.int64(3), 3),
        # As in Keras: no epochs are left.
        ("epochs", 0, 0),
        ("epochs", -1, -1),
        ("initial_epoch", np.int32(2), 2),
        ("validation_freq", 2, 2),
        # Keras trains an epoch before it refuses them.
        ("validation_freq", np.int64(2), 2),
        ("validation_freq", (1, np.int64(4)), [1, 4]),
        ("batch_size", None, None),
        ("batch_size", 8, 8),
        ("x", -1, -1),
    ],
)
def test_numbers_with_a_meaning_pass(
    name: str, value: Any, expected: Any
) -> None:
    result = call_arguments.checked("fit", {name: value})[name]
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps_per_epoch", -2),
        ("steps_per_epoch", 2.0),
        ("steps_per_epoch", "4"),
        ("validation_steps", -7),
        ("steps", [3]),
        ("epochs", 1.5),
        ("initial_epoch", "1"),
        ("validation_freq", 0),
        ("validation_freq", -1),
        ("validation_freq", [1, 2.5]),
        ("batch_size", 0),
        ("validation_batch_size", -4),
        ("steps_per_execution", 0),
        ("steps_per_execution", -3),
    ],
)
def test_numbers_without_one_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"Received: {name}=") as raised:
        call_arguments.checked("fit", {name: value})
    assert isinstance(raised.value, errors.InputError)
    assert repr(value) in str(raised.value)
