import pathlib
from typing import Any

import keras
import numpy as np
import pytest

from tfps_plugin._compat.keras import set_value
from tfps_plugin.training.patches import hooks
from tfps_plugin.training.saving import block_stores
from tfps_plugin.training.saving import lora_saving
from tfps_plugin.variables import testing
from tfps_plugin.variables.saving import shard_reader

pytestmark = pytest.mark.compat

_ROWS = 101


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks.install()
    monkeypatch.setattr(shard_reader, "BLOCK_BYTES", 7 * 8 * 4)


def _model(num_shards: int, dtype: str) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(
                _ROWS, 8, lora_rank=2, dtype=dtype, name="table"
            ),
        ],
        name="model",
    )
    layer = model.layers[0]
    random = np.random.default_rng(3)
    layer.lora_embeddings_b.assign(random.normal(size=(2, 8)))
    if num_shards:
        for variable in (layer._embeddings, layer.lora_embeddings_a):
            table = testing.sharded_variable(variable._value, num_shards)
            set_value(variable, table)
    return model


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_the_file_is_the_one_that_keras_writes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    plain, ours = tmp_path / "plain.weights.h5", tmp_path / "ours.weights.h5"
    _model(0, dtype).save_weights(plain)
    model = _model(3, dtype)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        pytest.fail("a whole table is read")

    with monkeypatch.context() as patch:
        patch.setattr(shard_reader, "read_whole", refuse)
        patch.setattr(lora_saving.MergedRows, "__array__", refuse)
        model.save_weights(ours)
        # Merged: the loaded weights have nothing to add.
        model.load_weights(ours)
    assert ours.read_bytes() == plain.read_bytes()
    assert not np.any(model.layers[0].lora_embeddings_b.numpy())
    again = tmp_path / "again.weights.h5"
    model.save_weights(again)
    assert again.read_bytes() == plain.read_bytes()


def test_other_stores_get_arrays() -> None:
    store: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    _model(3, "float32").layers[0].save_own_variables(store)
    _model(0, "float32").layers[0].save_own_variables(expected)
    np.testing.assert_allclose(store["0"], expected["0"], rtol=1e-6)
    assert not isinstance(store["0"], lora_saving.MergedRows)


def test_only_savers_do_not_see_the_merged_table(
    tmp_path: pathlib.Path,
) -> None:
    layer, plain = (
        _model(3, "float32").layers[0],
        _model(0, "float32").layers[0],
    )
    seen: list[Any] = []
    look = block_stores.in_blocks(lambda each, _: seen.append(each.embeddings))
    store = block_stores.BlockStore(tmp_path / "some.weights.h5", mode="w")
    look(layer, store)
    look(plain, store)
    look(layer, {})
    store.close()
    assert [isinstance(each, lora_saving.MergedRows) for each in seen] == [
        True,
        False,
        False,
    ]
    # The attribute still gives the value that Keras computes.
    np.testing.assert_allclose(layer.embeddings, plain.embeddings, rtol=1e-6)
