import pathlib
from collections.abc import Iterator
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat.keras import set_value
from tfps_plugin.training import layers
from tfps_plugin.training.patches import hooks
from tfps_plugin.training.saving.block_stores import BlockStore
from tfps_plugin.training.saving.stored_array import StoredArray
from tfps_plugin.training.saving.table_rows import TableRows
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable

_ROWS = 101
_BLOCK_BYTES = 7 * 3 * 4


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks.install()
    monkeypatch.setattr(
        "tfps_plugin.variables.saving.shard_reader.BLOCK_BYTES", _BLOCK_BYTES
    )


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts rows of each message to the chief; refuses whole tables."""
    sizes: list[int] = []
    fetch_rows = RemoteVariable.fetch_rows

    def fetch(self: RemoteVariable, rows: range) -> np.ndarray:
        sizes.append(len(rows))
        return fetch_rows(self, rows)

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        pytest.fail("a whole table is read")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteVariable, "fetch_rows", fetch)
        for method in ("numpy", "read_value", "__array__"):
            patch.setattr(testing.ShardedVariable, method, refuse)
            patch.setattr(RemoteVariable, method, refuse)
        patch.setattr(TableRows, "__array__", refuse)
        patch.setattr(StoredArray, "__array__", refuse)
        yield sizes


def _table(value: np.ndarray, num_shards: int) -> Any:
    if num_shards == 0:
        return testing.remote_variable(value)
    return testing.sharded_variable(value, num_shards)


def _value(dtype: str = "float32", rows: int = _ROWS) -> np.ndarray:
    random = np.random.default_rng(3)
    return tf.cast(random.normal(size=(rows, 3)) * 50, dtype).numpy()


def _place(model: keras.Model, num_shards: int) -> keras.Model:
    """Puts a model's large variables where a strategy would put them."""
    optimizer = model.optimizer
    for variable in [*model.variables, *optimizer.variables]:
        if variable.shape[:1] == (_ROWS,):
            set_value(variable, _table(variable.numpy(), num_shards))
    return model


def _model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(_ROWS, 3, name="table"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(3, name="dense"),
        ],
        name="model",
    )
    model.compile(keras.optimizers.Adam(0.1, name="adam"), "mse")
    model.optimizer.build(model.trainable_variables)
    random = np.random.default_rng(seed)
    for variable in model.optimizer.variables:
        variable.assign(random.integers(1, 9, variable.shape))
    return model


def _states(model: keras.Model) -> list[np.ndarray]:
    return [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


def _assert_equal(model: keras.Model, other: keras.Model) -> None:
    for one, two in zip(_states(model), _states(other), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.compat
@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_the_file_is_the_one_that_keras_writes(
    tmp_path: pathlib.Path, fetched: list[int], num_shards: int
) -> None:
    plain, ours = tmp_path / "plain.weights.h5", tmp_path / "ours.weights.h5"
    model = _model(1)
    model.save_weights(plain)
    _place(model, num_shards).save_weights(ours)
    assert ours.read_bytes() == plain.read_bytes()
    # The table and both slots of Adam, in messages of limited size.
    assert sum(fetched) == 3 * _ROWS
    assert max(fetched) <= 2 * 7


@pytest.mark.compat
@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_a_file_of_keras_is_loaded(
    tmp_path: pathlib.Path, fetched: list[int], num_shards: int
) -> None:
    path = tmp_path / "model.weights.h5"
    saved = _model(1)
    saved.save_weights(path)
    model = _place(_model(2), num_shards)
    model.load_weights(path)
    again = tmp_path / "again.weights.h5"
    model.save_weights(again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_any_dtype_is_kept(tmp_path: pathlib.Path, dtype: str) -> None:
    value = _value(dtype, 400)
    paths = [tmp_path / "ours.h5", tmp_path / "plain.h5"]
    for path, saved in zip(
        paths, [testing.sharded_variable(value, 3), value], strict=True
    ):
        store = BlockStore(path, mode="w")
        store.make("layer")["0"] = saved
        store.close()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with h5py.File(paths[0]) as file:
        stored = StoredArray(file["layer/vars/0"])
        assert stored.dtype == value.dtype
        np.testing.assert_array_equal(stored[5:250], value[5:250])
        np.testing.assert_array_equal(np.asarray(stored), value)


@pytest.mark.compat
def test_weights_in_several_files(
    tmp_path: pathlib.Path, fetched: list[int]
) -> None:
    model = _model(1)
    # Each file has room for the table or one slot, but not for two.
    gigabytes = 1.5 * _ROWS * 3 * 4 / 2**30
    (tmp_path / "plain").mkdir()
    (tmp_path / "ours").mkdir()
    model.save_weights(
        tmp_path / "plain/m.weights.json", max_shard_size=gigabytes
    )
    _place(model, 3).save_weights(
        tmp_path / "ours/m.weights.json", max_shard_size=gigabytes
    )
    names = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert len(names) > 3
    for name in names:
        ours, plain = tmp_path / "ours" / name, tmp_path / "plain" / name
        assert ours.read_bytes() == plain.read_bytes()
    loaded = _place(_model(2), 2)
    loaded.load_weights(tmp_path / "ours/m.weights.json")
    loaded.save_weights(tmp_path / "again.weights.h5")
    plain_loaded = _model(2)
    plain_loaded.load_weights(tmp_path / "again.weights.h5")
    plain = _model(1)
    _assert_equal(plain_loaded, plain)


def test_a_table_that_fits_into_no_file_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(ValueError, match="exceeds the maximum shard size"):
        _place(_model(1), 3).save_weights(
            tmp_path / "model.weights.json", max_shard_size=200 / 2**30
        )


@pytest.mark.compat
def test_archives_are_made_on_disk(
    tmp_path: pathlib.Path,
    fetched: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "model.keras"
    model = _place(_model(1), 3)
    with monkeypatch.context() as patch:
        patch.setattr(
            "keras.src.saving.saving_lib.io.BytesIO",
            lambda *args: pytest.fail("the file is made in memory"),
        )
        model.save(path)
    _assert_equal(keras.saving.load_model(path), _model(1))
    other = _place(_model(2), 2)
    other.load_weights(path)
    # Loading weights does not restore the state of the optimizer.
    other.save_weights(tmp_path / "other.weights.h5")
    plain = _model(2)
    plain.load_weights(tmp_path / "other.weights.h5")
    _assert_equal(plain, _model(1))


@pytest.mark.parametrize("num_shards", [0, 3])
def test_another_shape_is_refused_in_keras_words(
    tmp_path: pathlib.Path, num_shards: int
) -> None:
    path = tmp_path / "model.weights.h5"
    _model(1).save_weights(path)
    # Has one more row, so that no file of the other model fits.
    layer = keras.layers.Embedding(_ROWS + 1, 3)
    other = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    with pytest.raises(ValueError) as of_keras:  # noqa: PT011 compared below
        other.load_weights(path)
    table = _table(layer.embeddings.numpy(), num_shards)
    set_value(layer.embeddings, table)
    with pytest.raises(ValueError) as ours:  # noqa: PT011 compared below
        other.load_weights(path)
    words, of_our_own = (
        str(error.value).partition("<Variable path")[0]
        for error in (of_keras, ours)
    )
    assert "target variable and the shape of the target value" in words
    assert of_our_own == words


def test_other_models_are_given_arrays(tmp_path: pathlib.Path) -> None:
    class Remembering(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.big = self.add_weight(shape=(_ROWS, 3))

        def load_own_variables(self, store: Any) -> None:
            self.given = store["0"]
            self.big.assign(self.given)

    path = tmp_path / "model.weights.h5"
    layer = Remembering()
    model = keras.Sequential([keras.Input((3,)), layer])
    model.build()
    model.save_weights(path)
    model.load_weights(path)
    assert type(layer.given) is np.ndarray
    # Also next to one of our tables; only the table's layer uses files.
    ours = testing.sharded_variable(_value(), 3)
    set_value(layer.big, ours)
    model.load_weights(path)
    assert isinstance(layer.given, StoredArray)
    np.testing.assert_array_equal(layer.given * 2, ours.numpy() * 2)
    np.testing.assert_array_equal(layer.given[3], ours.numpy()[3])
    np.testing.assert_array_equal(layer.given.T, ours.numpy().T)
    np.testing.assert_array_equal(
        tf.convert_to_tensor(layer.given), ours.numpy()
    )
    assert layer.given.astype("float64").dtype == "float64"
    assert (layer.given.ndim, layer.given.size) == (2, 3 * _ROWS)
    assert len(layer.given) == _ROWS


def test_arrays_are_assigned_in_blocks(fetched: list[int]) -> None:
    variable = keras.Variable(np.zeros((_ROWS, 3), "float32"))
    set_value(variable, testing.sharded_variable(variable.numpy(), 3))
    value = _value("float64")
    variable.assign(value)
    rows = [
        block for _, block in TableRows(variable._value, [range(5, 9)]).blocks()
    ]
    np.testing.assert_array_equal(
        np.concatenate(rows), value[5:9].astype("float32")
    )


def test_other_stores_get_arrays_from_an_optimizer() -> None:
    model = _place(_model(1), 3)
    store: dict[str, Any] = {}
    model.optimizer.save_own_variables(store)
    assert {type(value) for value in store.values()} <= {
        np.ndarray,
        np.generic,
    } | {
        type(np.int64(1)),
        type(np.float32(1)),
    }
    assert len(store) == len(model.optimizer.variables)


def test_rows_of_a_table_are_saved_alone(tmp_path: pathlib.Path) -> None:
    value = _value()
    table = testing.sharded_variable(value, 3)
    store = BlockStore(tmp_path / "part.h5", mode="w")
    store.make("layer")["part"] = TableRows(table, [range(20, 77)])
    store.close()
    with h5py.File(tmp_path / "part.h5") as file:
        np.testing.assert_array_equal(file["layer/vars/part"], value[20:77])
    np.testing.assert_array_equal(
        np.asarray(TableRows(table, [range(20, 77)])), value[20:77]
    )


def test_tables_of_a_stack_are_saved_and_loaded_in_blocks(
    tmp_path: pathlib.Path, fetched: list[int]
) -> None:
    configs = [
        layers.FeatureConfig(
            name, layers.TableConfig(name, rows, 3), (None,), (None, 3)
        )
        for name, rows in (("a", 40), ("b", 61))
    ]

    def make() -> keras.Model:
        ids = [keras.Input((), dtype="int32") for _ in configs]
        return keras.Model(ids, layers.DistributedEmbedding(configs)(ids))

    plain, model = make(), make()
    (stack,) = model.weights
    value = _value()
    set_value(stack, _table(value, 2))
    model.save_weights(tmp_path / "model.weights.h5")
    assert sum(fetched) == _ROWS
    plain.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(plain.weights[0].numpy(), value)
    set_value(stack, _table(np.zeros_like(value), 3))
    model.load_weights(tmp_path / "model.weights.h5")
    ids = [np.arange(40), np.arange(61)]
    np.testing.assert_array_equal(
        np.concatenate(model([tf.constant(i) for i in ids])), value
    )
