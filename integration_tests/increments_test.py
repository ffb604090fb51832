"""Tests of checkpoints with changed rows only."""

import contextlib
import gc
import pathlib
import re
import shutil
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import shared_damage
import shared_training
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.recovery.checkpoints import shared_folder

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 500
_SMALL_TABLE = 40
_WIDTH = 8
# Number of damaged files, one after the other.
_NUM_DAMAGES = 30


@pytest.fixture(scope="module")
def strategies(
    cluster: tfps.LocalCluster,
) -> Iterator[dict[int, tfps.ParameterServerStrategy]]:
    made = {
        number: tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(number),
            # Steps that touch some rows change no others.
            sparse_update="lazy",
        )
        for number in (2, 3)
    }
    # Made here, because their threads outlive the first test that uses them.
    coordinators = [tfps.ClusterCoordinator(s) for s in made.values()]
    yield made
    for coordinator in coordinators:
        coordinator.close()


def _let_tables_be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tfps_plugin.recovery.incremental.row_marks.SMALLEST_TABLE_BYTES",
        _ROWS * _WIDTH * 4,
    )


@pytest.fixture(autouse=True)
def _tables_may_be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    _let_tables_be_small(monkeypatch)


def _model(seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    ids = keras.Input((4,), dtype="int32")
    rows = keras.layers.Embedding(_ROWS, _WIDTH, name="large")(ids)
    few = keras.layers.Embedding(_SMALL_TABLE, _WIDTH, name="small")(
        keras.ops.mod(ids, _SMALL_TABLE)
    )
    flat = keras.layers.Flatten()(keras.layers.Concatenate()([rows, few]))
    model = keras.Model(ids, keras.layers.Dense(1)(flat))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _train(model: keras.Model, first: int, end: int) -> None:
    """Changes these rows of the large table, and no others."""
    ids = np.arange(first, end, dtype="int32")
    ids = np.stack([ids] * 4, axis=1)
    model.fit(ids, np.ones((len(ids), 1)), batch_size=8, verbose=0)


def _rows_in(prefix: str) -> list[int]:
    """Returns the row numbers of the large table that an increment has."""
    reader = tf.train.load_checkpoint(prefix)
    found: list[int] = []
    for key in reader.get_variable_to_shape_map():
        if key.endswith("/rows") and "optimizer" not in key:
            found += reader.get_tensor(key).tolist()
    return sorted(found)


@pytest.fixture(params=["ps write", "chief writes"])
def _who_writes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.param == "chief writes":
        never = lambda *_: False  # noqa: E731
        monkeypatch.setattr(shared_folder, "is_seen_by", never)
        monkeypatch.setattr(shared_folder, "is_same_file", never)
    # With this, changed rows go in several pieces.
    for module in (
        "checkpoints.part_files",
        "incremental.change_files",
        "incremental.merging",
    ):
        monkeypatch.setattr(f"tfps_plugin.recovery.{module}.SLICE_BYTES", 300)


@pytest.mark.usefixtures("_who_writes")
@pytest.mark.sample(cases=1)
def test_each_is_restored_anywhere(
    strategies: dict[int, tfps.ParameterServerStrategy],
    tmp_path: pathlib.Path,
) -> None:
    with strategies[2].scope():
        model = _model()
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path, None, full_every=4
    )
    expected = {}
    # The fifth is a full one, the sixth follows it.
    for first, end in [(0, 9), (3, 40), (499, 500), (7, 7), (230, 260), (0, 1)]:
        if end > first:
            _train(model, first, end)
        expected[manager.save()] = shared_training.state_of(model)
    manager.sync()
    shared_training.assert_slots_are_trained(model)
    assert list(expected) == manager.checkpoints
    names = [str(pathlib.Path(p).relative_to(tmp_path)) for p in expected]
    assert names == [
        "ckpt-1",
        *(f"ckpt-1.increments/ckpt-{n}" for n in (2, 3, 4)),
        "ckpt-5",
        "ckpt-5.increments/ckpt-6",
    ]
    assert _rows_in(manager.checkpoints[1]) == list(range(3, 40))
    assert _rows_in(manager.checkpoints[2]) == [499]
    assert _rows_in(manager.checkpoints[3]) == []
    # TensorFlow only sees the full checkpoints.
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-5")
    with strategies[3].scope():
        other = _model(seed=1)
    alone = _model(seed=2)
    for prefix, values in expected.items():
        for program in (model, other, alone):
            tfps.Checkpoint(model=program).restore(prefix)
            shared_training.assert_state(program, values)


def _by_id() -> keras.Model:
    ids = keras.Input((2,), dtype="int64")
    rows = tfps.layers.DynamicEmbedding(_WIDTH, capacity=_ROWS, name="large")
    flat = keras.layers.Flatten()(rows(ids))
    model = keras.Model(ids, keras.layers.Dense(1, name="top")(flat))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def test_rows_by_id_are_restored_anywhere(
    strategies: dict[int, tfps.ParameterServerStrategy],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Records of rows are smaller than the rows.
    monkeypatch.setattr(
        "tfps_plugin.recovery.incremental.row_marks.SMALLEST_TABLE_BYTES", 4000
    )
    with strategies[2].scope():
        model = _by_id()
    layer = model.get_layer("large")
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path, None, full_every=3
    )
    expected = {}
    # New ids, then known ones and new ones.
    for first, end in [(0, 40), (40, 56), (32, 64)]:
        ids = np.arange(first, end)[:, None] * [2**50, -(2**50)] - 3
        model.fit(ids, np.ones((len(ids), 1)), batch_size=8, verbose=0)
        prefix = manager.save()
        expected[prefix] = shared_training.state_of(model)
    manager.sync()
    ids, rows = layer.export()
    assert sum(".increments" in prefix for prefix in expected) == 2
    # Rows and records of the ids that steps have met since; and of both shards
    # the record that counts its changes.
    rows_in = _rows_in(manager.checkpoints[1])
    assert (len(rows_in), len(set(rows_in))) == (2 * 32 + 2, 32 + 2)
    with strategies[3].scope():
        other = _by_id()
    alone = _by_id()
    for prefix, values in expected.items():
        for program in (model, other, alone):
            tfps.Checkpoint(model=program).restore(prefix)
            shared_training.assert_state(program, values)
    # Lookups find what the newest one has.
    for program in (model, other, alone):
        restored = program.get_layer("large")
        assert sorted(restored.export()[0]) == sorted(ids)
        np.testing.assert_array_equal(restored(tf.constant(ids)), rows)


def test_what_is_made_later_gets_its_value_from_an_increment(
    strategies: dict[int, tfps.ParameterServerStrategy],
    tmp_path: pathlib.Path,
) -> None:
    with strategies[2].scope():
        model = _model()
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(table=model.get_layer("large").embeddings.value),
            tmp_path,
            full_every=2,
        )
        manager.save()
        _train(model, 5, 9)
        prefix = manager.save()
        manager.sync()
        assert ".increments" in prefix
        later = tf.Module()
        tfps.Checkpoint(root=later).restore(prefix, strict=False)
        later.table = tf.Variable(tf.zeros([_ROWS, _WIDTH]))
    (expected,) = model.get_layer("large").get_weights()
    np.testing.assert_array_equal(later.table.numpy(), expected)
    # The files that it was restored from are deleted with their last user.
    del later
    gc.collect()


class _Three:
    """A full checkpoint, two increments of it, and the state of each."""

    def __init__(self, model: keras.Model, folder: pathlib.Path) -> None:
        self.model = model
        self.manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=model), folder, full_every=3
        )
        self.expected = {}
        for first in (0, 10, 20):
            _train(model, first, first + 5)
            self.newest = self.manager.save()
            self.expected[self.newest] = shared_training.state_of(model)
            self.manager.sync()
        self._folder = folder

    @contextlib.contextmanager
    def kept(self) -> Iterator[pathlib.Path]:
        """Yields the folder; undoes all changes to its files."""
        good = {
            path: path.read_bytes()
            for path in self._folder.rglob("ckpt-*")
            if path.is_file()
        }
        try:
            yield self._folder
        finally:
            for path, content in good.items():
                path.write_bytes(content)


@pytest.fixture(scope="module")
def three(
    strategies: dict[int, tfps.ParameterServerStrategy],
    tmp_path_factory: pytest.TempPathFactory,
) -> _Three:
    with pytest.MonkeyPatch.context() as patch:
        _let_tables_be_small(patch)
        with strategies[2].scope():
            model = _model()
        three = _Three(model, tmp_path_factory.mktemp("three"))
    shared_training.assert_slots_are_trained(model)
    return three


class TestDamage:
    """Tests of increments whose files are damaged."""

    @pytest.mark.parametrize("kind", shared_damage.KINDS)
    @pytest.mark.parametrize(
        ("damaged", "newest", "unreadable"),
        [
            # The last increment needs all of the one in the middle.
            ("ckpt-1.increments/ckpt-2.data*", "ckpt-1", {"2", "3"}),
            ("ckpt-1.increments/ckpt-2.index", "ckpt-1", {"2", "3"}),
            ("ckpt-1.increments/ckpt-3.data*", "ckpt-2", {"3"}),
            ("ckpt-1.increments/ckpt-3.index", "ckpt-2", {"3"}),
        ],
    )
    def test_what_is_lost_is_named_and_the_newest_whole_one_is_taken(
        self,
        three: _Three,
        caplog: pytest.LogCaptureFixture,
        damaged: str,
        newest: str,
        unreadable: set[str],
        kind: str,
    ) -> None:
        with three.kept() as folder:
            for path in folder.glob(damaged):
                shared_damage.damage(path, kind)
            restored = three.manager.restore_latest()
        assert restored is not None
        assert pathlib.Path(restored).name == newest
        shared_training.assert_state(three.model, three.expected[restored])
        # A checkpoint without an index is named by the one that needs it.
        named = re.findall(
            r"ckpt-(\d+)(?: cannot be read|' is gone)", caplog.text
        )
        assert set(named) == unreadable

    def test_whatever_is_damaged_nothing_wrong_is_restored(
        self, three: _Three, caplog: pytest.LogCaptureFixture
    ) -> None:
        random = np.random.default_rng(2)
        num_rejected = 0
        for number in range(_NUM_DAMAGES):
            caplog.clear()
            with three.kept() as folder:
                files = sorted(folder.glob("ckpt-1.increments/*"))
                path = files[random.integers(len(files))]
                shared_damage.damage_somehow(path, random)
                restored = three.manager.restore_latest()
            assert restored is not None
            shared_training.assert_state(three.model, three.expected[restored])
            if restored != three.newest:
                assert "ckpt-3 cannot be read" in caplog.text, number
                num_rejected += 1
        assert num_rejected > _NUM_DAMAGES // 2
        assert three.manager.restore_latest() == three.newest


class TestFolder:
    """Tests of the manager's folder."""

    @pytest.fixture
    def model(
        self, strategies: dict[int, tfps.ParameterServerStrategy]
    ) -> keras.Model:
        with strategies[2].scope():
            return _model()

    def _manager(
        self, model: keras.Model, folder: pathlib.Path, max_to_keep: int = 5
    ) -> tfps.CheckpointManager:
        return tfps.CheckpointManager(
            tfps.Checkpoint(model=model), folder, max_to_keep, full_every=3
        )

    def test_a_full_one_is_kept_as_long_as_it_is_needed(
        self, model: keras.Model, tmp_path: pathlib.Path
    ) -> None:
        manager = self._manager(model, tmp_path, max_to_keep=2)
        kept = []
        for _ in range(7):
            manager.save()
            manager.sync()
            names = [pathlib.Path(p).name for p in manager.checkpoints]
            kept.append([int(name.removeprefix("ckpt-")) for name in names])
        assert kept == [
            [1],
            [1, 2],
            [1, 2, 3],
            [1, 2, 3, 4],
            [4, 5],
            [4, 5, 6],
            [4, 5, 6, 7],
        ]
        assert not (tmp_path / "ckpt-1.increments").exists()
        manager.delete_all()
        assert not tmp_path.exists()

    def test_another_manager_begins_with_a_full_one(
        self, model: keras.Model, tmp_path: pathlib.Path
    ) -> None:
        first = self._manager(model, tmp_path)
        for _ in range(2):
            first.save()
            first.sync()
        (tmp_path / "ckpt-1.increments" / ".writing-ckpt-3").mkdir()
        second = self._manager(model, tmp_path)
        assert not list(tmp_path.glob("*/.writing*"))
        assert second.restore_latest() == first.latest_checkpoint
        assert second.save() == str(tmp_path / "ckpt-3")
        second.sync()

    def test_one_that_cannot_be_written_is_followed_by_a_full_one(
        self,
        model: keras.Model,
        tmp_path: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        manager = self._manager(model, tmp_path)
        manager.save()
        manager.sync()
        _train(model, 0, 9)

        def full(*arguments: object) -> None:
            raise tf.errors.ResourceExhaustedError(None, None, "disk full")

        with monkeypatch.context() as patch:
            patch.setattr(
                "tfps_plugin.recovery.checkpoints.committing.commit", full
            )
            manager.save()
            with pytest.raises(tf.errors.ResourceExhaustedError):
                manager.sync()
        assert manager.checkpoints == [str(tmp_path / "ckpt-1")]
        assert manager.save() == str(tmp_path / "ckpt-2")
        manager.sync()

    def test_an_increment_of_another_full_one_is_refused(
        self, model: keras.Model, tmp_path: pathlib.Path
    ) -> None:
        manager = self._manager(model, tmp_path)
        manager.save()
        _train(model, 0, 5)
        increment = manager.save()
        manager.sync()
        shutil.copytree(tmp_path / "ckpt-1.increments", tmp_path / "copy")
        # A full checkpoint under the same name, next to the old increment.
        manager.save(checkpoint_number=1)
        manager.sync()
        assert manager.checkpoints == [str(tmp_path / "ckpt-1")]
        shutil.copytree(tmp_path / "copy", tmp_path / "ckpt-1.increments")
        with pytest.raises(
            errors.CheckpointUnreadableError, match="was overwritten"
        ):
            manager.checkpoint.restore(increment)

    def test_an_option_without_meaning(
        self, model: keras.Model, tmp_path: pathlib.Path
    ) -> None:
        with pytest.raises(ValueError, match="full_every=0"):
            tfps.CheckpointManager(
                tfps.Checkpoint(model=model), tmp_path, full_every=0
            )
