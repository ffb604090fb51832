import logging
import types
from typing import Any

import keras
import numpy as np
import pytest

from tfps_plugin.training.optimizers import table_semantics
from tfps_plugin.variables import testing

_optimizers = keras.optimizers


def _variable(num_rows: int, name: str = "embeddings") -> Any:
    value = testing.remote_variable(np.zeros([num_rows, 4], "float32"))
    return types.SimpleNamespace(
        value=value,
        shape=(num_rows, 4),
        name=name,
        path=f"layer/{name}",
        _unique_id=value._unique_id,
    )


def _told(
    optimizer: Any,
    variable: Any,
    sparse_update: str,
    caplog: pytest.LogCaptureFixture,
) -> list[tuple[int, str]]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tfps_plugin.training"):
        for _ in range(2):
            table_semantics.tell(optimizer, [variable], sparse_update)
    return [(r.levelno, r.getMessage()) for r in caplog.records]


@pytest.mark.parametrize(
    "optimizer",
    [
        _optimizers.Adam(),
        _optimizers.SGD(momentum=0.9),
        _optimizers.Adagrad(weight_decay=0.1),
        _optimizers.LossScaleOptimizer(_optimizers.Adam()),
    ],
)
def test_one_warning_where_lazy_updates_have_other_numbers(
    optimizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told = _told(optimizer, _variable(100_000), "lazy", caplog)
    assert [level for level, _ in told] == [logging.WARNING]
    assert "layer/embeddings (100000, 4)" in told[0][1]
    assert "caught_up" in told[0][1]


@pytest.mark.parametrize(
    ("optimizer", "sparse_update"),
    [
        (_optimizers.SGD(0.1), "lazy"),
        (_optimizers.Adagrad(0.1), "lazy"),
        (_optimizers.Adam(), "exact"),
        (_optimizers.Adam(), "caught_up"),
    ],
)
def test_one_line_where_they_have_those_of_one_process(
    optimizer: Any, sparse_update: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = _told(optimizer, _variable(100_000), sparse_update, caplog)
    assert [level for level, _ in told] == [logging.INFO]
    assert sparse_update in told[0][1]


@pytest.mark.parametrize("variable", [_variable(100), _variable(100_000, "w")])
def test_nothing_of_small_tables_and_of_kernels(
    variable: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert not _told(_optimizers.Adam(), variable, "lazy", caplog)
