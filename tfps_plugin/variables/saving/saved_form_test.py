import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.saving import saved_form
from tfps_plugin.variables.saving import shard_reader

_ROWS = 11


def _value(seed: int = 3) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=(_ROWS, 2)).astype("float32")


@pytest.fixture
def nothing_whole(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Makes reads of whole tables fail, until `undo()` is called."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        pytest.fail("a whole table is read")

    monkeypatch.setattr(shard_reader, "read_whole", refuse)
    monkeypatch.setattr(RemoteVariable, "fetch_rows", refuse)
    return monkeypatch


# Checkpoints.


@pytest.fixture(params=["one slice", "many slices"])
def _slices(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.param == "many slices":
        # Slices of two rows.
        monkeypatch.setattr(saved_form, "SLICE_BYTES", 16)
        monkeypatch.setattr(saved_form, "_ALIGNED_ROWS", 1)


@pytest.mark.usefixtures("_slices")
@pytest.mark.parametrize(("saved", "restored"), [(3, 1), (1, 3), (3, 2)])
def test_a_checkpoint_is_restored_to_other_shards(
    tmp_path: pathlib.Path,
    nothing_whole: pytest.MonkeyPatch,
    saved: int,
    restored: int,
) -> None:
    table = testing.sharded_variable(_value(), saved)
    other = testing.sharded_variable(_value(4), restored)
    path = tf.train.Checkpoint(table=table).write(str(tmp_path / "saved"))
    tf.train.Checkpoint(table=other).read(path).assert_consumed()
    nothing_whole.undo()
    np.testing.assert_array_equal(other.numpy(), _value())


@pytest.mark.usefixtures("_slices")
def test_a_checkpoint_fits_a_plain_variable_and_back(
    tmp_path: pathlib.Path,
) -> None:
    table = testing.sharded_variable(_value(), 3)
    plain = tf.Variable(_value(4))
    path = tf.train.Checkpoint(table=table).write(str(tmp_path / "ours"))
    tf.train.Checkpoint(table=plain).read(path).assert_consumed()
    np.testing.assert_array_equal(plain.numpy(), _value())
    plain.assign(_value(5))
    path = tf.train.Checkpoint(table=plain).write(str(tmp_path / "plain"))
    tf.train.Checkpoint(table=table).read(path).assert_consumed()
    np.testing.assert_array_equal(table.numpy(), _value(5))


@pytest.mark.usefixtures("_slices")
def test_several_variables_in_one_checkpoint(tmp_path: pathlib.Path) -> None:
    variables = {
        "table": testing.sharded_variable(_value(), 3),
        "whole": testing.remote_variable(_value(4)),
        "plain": tf.Variable(_value(5)),
    }
    path = tf.train.Checkpoint(**variables).write(str(tmp_path / "saved"))
    for variable in variables.values():
        variable.assign(np.zeros((_ROWS, 2), "float32"))
    tf.train.Checkpoint(**variables).read(path).assert_consumed()
    for seed, variable in zip((3, 4, 5), variables.values(), strict=True):
        np.testing.assert_array_equal(variable.numpy(), _value(seed))


def test_shards_are_written_in_slices_and_read_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saved_form, "SLICE_BYTES", 16)
    monkeypatch.setattr(saved_form, "_ALIGNED_ROWS", 1)
    table = testing.sharded_variable(_value(), 2)
    (written,) = table._serialize_to_tensors().values()
    assert list(written) == [
        f"11 2 {start},{size}:0,2"
        for start, size in ((0, 2), (2, 2), (4, 2), (6, 2), (8, 2), (10, 1))
    ]
    np.testing.assert_array_equal(
        np.concatenate([spec.tensor.numpy() for spec in written.values()]),
        _value(),
    )
    assert list(table.slices_to_restore()) == [
        "11 2 0,6:0,2",
        "11 2 6,5:0,2",
    ]


def test_another_shape_is_refused(tmp_path: pathlib.Path) -> None:
    table = testing.sharded_variable(_value(), 3)
    plain = tf.Variable(_value()[1:])
    path = tf.train.Checkpoint(table=plain).write(str(tmp_path / "saved"))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"spec \[11,2\] does not match"
    ):
        tf.train.Checkpoint(table=table).read(path)
    np.testing.assert_array_equal(table.numpy(), _value())


def test_a_table_is_restored_when_it_is_made(tmp_path: pathlib.Path) -> None:
    table = testing.sharded_variable(_value(), 3)
    path = tf.train.Checkpoint(table=table).write(str(tmp_path / "saved"))
    later = tf.train.Checkpoint()
    status = later.read(path)
    later.table = testing.sharded_variable(_value(4), 2)
    status.assert_consumed()
    np.testing.assert_array_equal(later.table.numpy(), _value())


def test_a_mirrored_scalar_is_saved_as_it_is_on_its_ps(
    tmp_path: pathlib.Path,
) -> None:
    scalar = MirroredScalar(testing.LOCAL_DEVICE, tf.int64, "steps")
    scalar.assign(7)
    # The value is a copy, which must not be confused with the scalar itself.
    read = tf.function(lambda: tf.identity(scalar))
    assert read() == 7
    scalar.assign_add(1)
    path = tf.train.Checkpoint(steps=scalar).write(str(tmp_path / "saved"))
    plain = tf.Variable(0, dtype=tf.int64)
    tf.train.Checkpoint(steps=plain).read(path).assert_consumed()
    assert plain.numpy() == 8
    scalar.assign(0)
    tf.train.Checkpoint(steps=scalar).read(path).assert_consumed()
    assert [int(scalar.numpy()), int(read())] == [8, 8]


# SavedModels.


class _Module(tf.Module):
    """Uses a table, a variable and a scalar, in functions."""

    def __init__(self, num_shards: int) -> None:
        super().__init__()
        self.table = testing.sharded_variable(_value(), num_shards)
        self.whole = testing.remote_variable(_value(4))
        self.steps = MirroredScalar(testing.LOCAL_DEVICE, tf.int64, "steps")
        self.steps.assign(5)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="ids")])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "looked_up": tf.gather(self.table, ids),
            "of_whole": tf.gather(self.whole, ids),
            "sliced": self.table[2:9, 1:],
            "sum": tf.reduce_sum(self.table * 2.0 + self.whole),
            "steps": tf.identity(self.steps),
        }

    @tf.function(input_signature=[])
    def change(self) -> tf.Tensor:
        self.table.assign_add(tf.ones([_ROWS, 2]))
        self.table.scatter_add(
            tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]))
        )
        self.whole.assign(self.whole + 1.0)
        self.steps.assign_add(2)
        return self.steps.read_value()


def _answers(module: Any) -> dict[str, np.ndarray]:
    ids = tf.constant([0, 10, 5, 5])
    return {name: value.numpy() for name, value in module.serve(ids).items()}


def _assert_same(
    answers: dict[str, np.ndarray], truth: dict[str, np.ndarray]
) -> None:
    assert answers.keys() == truth.keys()
    for name, value in truth.items():
        np.testing.assert_allclose(answers[name], value, rtol=1e-6)


def test_a_saved_model_knows_no_shards(
    tmp_path: pathlib.Path, nothing_whole: pytest.MonkeyPatch
) -> None:
    module = _Module(3)
    tf.saved_model.save(module, tmp_path, signatures=module.serve)
    nothing_whole.undo()
    truth = _answers(module)
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.table.shape == [_ROWS, 2]
    assert not hasattr(loaded.table, "variables")
    _assert_same(_answers(loaded), truth)
    # The loaded module can be changed, with the same result as the original.
    assert loaded.change().numpy() == module.change().numpy() == 7
    np.testing.assert_allclose(loaded.table.numpy(), module.table.numpy())
    _assert_same(_answers(loaded), _answers(module))
    np.testing.assert_allclose(
        module.table.numpy()[3], _value()[3] + 2, rtol=1e-6
    )


def test_a_saved_model_can_be_trained(tmp_path: pathlib.Path) -> None:
    module = _Module(3)
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(str(tmp_path))
    with tf.GradientTape() as tape:
        looked_up = loaded.serve(tf.constant([4, 4, 9]))["looked_up"]
    gradient = tape.gradient(looked_up, loaded.table)
    dense = tf.convert_to_tensor(gradient).numpy()
    np.testing.assert_array_equal(dense[[4, 9, 0], 0], [2, 1, 0])


def test_a_concrete_function_of_before_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    module = _Module(3)
    # It is traced for a value, which is missing when saving traces it again.
    serve = tf.function(lambda ids: module.serve(ids))
    concrete = serve.get_concrete_function(tf.constant([1]))
    module.kept = serve
    with pytest.raises(errors.UnsupportedError, match="Pass the tf"):
        tf.saved_model.save(module, tmp_path, signatures=concrete)


def test_the_shards_of_a_saved_model_are_one_variable(
    tmp_path: pathlib.Path,
) -> None:
    seen = []

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = testing.sharded_variable(_value(), 3)

        @tf.function(input_signature=[])
        def serve(self) -> tf.Tensor:
            seen.append(len(self.table.variables))
            return tf.concat([each + 0.0 for each in self.table.variables], 0)

    module = Module()
    truth = module.serve().numpy()
    tf.saved_model.save(module, tmp_path)
    assert seen == [3, 1]
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.serve().numpy(), truth)
