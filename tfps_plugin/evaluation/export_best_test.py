import math
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.evaluation.export_best import ExportBest


@pytest.mark.parametrize(
    ("mode", "value", "best", "expected"),
    [
        ("min", 1.0, None, True),
        ("min", 1.0, 2.0, True),
        ("min", 2.0, 2.0, False),
        ("max", 3.0, 2.0, True),
        ("max", 1.0, 2.0, False),
        ("max", math.nan, None, False),
    ],
)
def test_what_is_better(
    mode: Any, value: float, best: float | None, expected: bool
) -> None:
    options = ExportBest("best.keras", "accuracy", mode)
    assert options.is_better(value, best) == expected


def test_the_smallest_loss_is_the_best() -> None:
    assert ExportBest("best.weights.h5").mode == "min"


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({"path": "best.h5"}, "path='best.h5'"),
        ({"path": "b.keras", "monitor": "auc"}, "monitor='auc', mode=None"),
        ({"path": "b.keras", "mode": "auto"}, "mode='auto'"),
    ],
)
def test_refuses_what_is_not_clear(
    options: dict[str, Any], received: str
) -> None:
    with pytest.raises(errors.InputError, match=received):
        ExportBest(**options)
