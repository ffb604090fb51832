import json
from typing import Any

import keras
import pytest

from tfps_plugin import errors
from tfps_plugin.training.embedding.config import Adopter
from tfps_plugin.training.embedding.config import FeatureConfig
from tfps_plugin.training.embedding.config import TableConfig
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

_TABLE = TableConfig("ads", 100, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "`name` of a TableConfig.*Received: name=''"),
        ({"name": "a/b"}, "no slash.*Received: name='a/b'"),
        ({"vocabulary_size": 0}, "positive.*vocabulary_size=0"),
        ({"vocabulary_size": 2.5}, "positive.*vocabulary_size=2.5"),
        ({"embedding_dim": True}, "positive.*embedding_dim=True"),
        ({"combiner": "max"}, "mean, sum, sqrtn.*combiner='max'"),
        ({"placement": "gpu"}, "placement='gpu'"),
    ],
)
def test_a_wrong_table_is_refused(
    options: dict[str, Any], message: str
) -> None:
    right = {"name": "ads", "vocabulary_size": 100, "embedding_dim": 4}
    with pytest.raises(ValueError, match=message):
        TableConfig(**{**right, **options})


def test_a_sparsecore_is_refused() -> None:
    with pytest.raises(errors.UnsupportedError, match="Use placement='auto'"):
        TableConfig("ads", 100, 4, placement="sparsecore")


def test_an_optimizer_of_a_table_is_refused_with_the_way_out() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"model\.compile\(\)"):
        TableConfig("ads", 100, 4, optimizer="adam")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": None}, "`name` of a FeatureConfig"),
        ({"input_shape": 5}, "`input_shape`.*tuple of sizes.*input_shape=5"),
        ({"input_shape": (None, -1)}, "tuple of sizes"),
        ({"input_shape": ()}, r"\(batch,\) for one id"),
        ({"input_shape": (None, 2, 3)}, r"Received: input_shape=\(None, 2, 3"),
        ({"output_shape": (None, 5)}, r"\(batch, 4\).*\(None, 5\)"),
        ({"output_shape": (None, 3, 4)}, r"\(batch, 4\)"),
    ],
)
def test_a_wrong_feature_is_refused(
    options: dict[str, Any], message: str
) -> None:
    right: dict[str, Any] = {
        "name": "ad",
        "table": _TABLE,
        "input_shape": [None, 2],
        "output_shape": [None, 4],
    }
    assert FeatureConfig(**right).input_shape == (None, 2)
    with pytest.raises(ValueError, match=message):
        FeatureConfig(**{**right, **options})


def test_a_feature_needs_a_table() -> None:
    with pytest.raises(TypeError, match="`table` of the feature 'ad'"):
        FeatureConfig("ad", "ads", (None,), (None, 4))  # type: ignore[arg-type]


def test_configurations_are_described_and_made_again() -> None:
    table = TableConfig(
        "ads", 100, 4, keras.initializers.RandomNormal(seed=3), combiner="sum"
    )
    feature = FeatureConfig("ad", table, (None, 2), (None, 4))
    again = FeatureConfig.from_config(feature.get_config())
    assert again.get_config() == feature.get_config()
    assert again.input_shape == (None, 2)
    assert isinstance(again.table.initializer, keras.initializers.RandomNormal)


def test_a_table_with_a_vocabulary_keeps_its_storage() -> None:
    storage = TieredStorage(10, "/rows")
    table = TableConfig("ads", 100, 4, storage=storage)
    again = TableConfig.from_config(json.loads(json.dumps(table.get_config())))
    assert again.storage == storage
    assert "storage" not in TableConfig("ads", 100, 4).get_config()
    with pytest.raises(ValueError, match="`storage` of the table 'ads'"):
        TableConfig("ads", 100, 4, storage=10)  # type: ignore[arg-type]


def test_two_tables_do_not_start_alike_by_default() -> None:
    seeds = {TableConfig("ads", 100, 4).initializer.seed for _ in range(3)}
    assert len(seeds) == 3


# keras_rs's own.


def _theirs(**options: Any) -> Any:
    keras_rs = pytest.importorskip("keras_rs")
    return keras_rs.layers.TableConfig(
        "ads", vocabulary_size=100, embedding_dim=4, **options
    )


def test_those_of_keras_rs_are_taken_and_keep_sharing_a_table() -> None:
    keras_rs = pytest.importorskip("keras_rs")
    table = _theirs(combiner="sum", max_ids_per_partition=7)
    adopter = Adopter()
    first, second = (
        adopter.feature(
            keras_rs.layers.FeatureConfig(name, table, (8, 2), (8, 4)), name
        )
        for name in ("a", "b")
    )
    third = adopter.feature(FeatureConfig("c", table, (8, 2), (8, 4)), "c")
    assert first.table is second.table is third.table
    assert isinstance(first, FeatureConfig)
    assert first.table == TableConfig(
        "ads", 100, 4, table.initializer, combiner="sum"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd"},
        {"optimizer": keras.optimizers.Adam()},
        {"placement": "sparsecore"},
    ],
)
def test_what_keras_rs_would_do_and_we_do_not_is_refused(
    options: dict[str, Any],
) -> None:
    keras_rs = pytest.importorskip("keras_rs")
    theirs = keras_rs.layers.FeatureConfig(
        "ad", _theirs(**options), (8,), (8, 4)
    )
    with pytest.raises(errors.UnsupportedError, match="'ads'"):
        Adopter().feature(theirs, "ad")


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="Received: 3 at ads/0"):
        Adopter().feature(3, "ads/0")
