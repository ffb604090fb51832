"""Tests of checkpoints that parameter servers write."""

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_damage
import shared_training
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events
from tfps_plugin.recovery.checkpoints import parts
from tfps_plugin.recovery.checkpoints import shared_folder

pytestmark = [
    pytest.mark.compat,
    pytest.mark.cluster(num_workers=1, num_ps=2),
]

_ROWS = 500
# Number of damaged files, one after the other.
_NUM_DAMAGES = 40
_random = np.random.default_rng(0)
_IDS = _random.integers(0, _ROWS, (256, 4)).astype("int32")
_TARGETS = _random.random((256, 1)).astype("float32")


def _strategy(
    cluster: tfps.LocalCluster, num_shards: int
) -> tfps.ParameterServerStrategy:
    return tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(num_shards),
    )


@pytest.fixture(scope="module")
def strategies(
    cluster: tfps.LocalCluster,
) -> Iterator[dict[int, tfps.ParameterServerStrategy]]:
    made = {number: _strategy(cluster, number) for number in (2, 3)}
    # Made here, because their threads outlive the first test that uses them.
    coordinators = [tfps.ClusterCoordinator(s) for s in made.values()]
    yield made
    for coordinator in coordinators:
        coordinator.close()


def _model(seed: int = 0, rows: int = _ROWS) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(rows, 8, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1, name="out"),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def trained(
    strategies: dict[int, tfps.ParameterServerStrategy],
) -> keras.Model:
    with strategies[2].scope():
        model = _model()
    model.fit(_IDS, _TARGETS, verbose=0)
    shared_training.assert_slots_are_trained(model)
    return model


@pytest.fixture(params=["ps write", "chief writes"])
def _who_writes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.param == "chief writes":
        never = lambda *_: False  # noqa: E731
        monkeypatch.setattr(shared_folder, "is_seen_by", never)
        monkeypatch.setattr(shared_folder, "is_same_file", never)
        # With this, a table of 16,000 bytes has several slices.
        monkeypatch.setattr(
            "tfps_plugin.recovery.checkpoints.part_files.SLICE_BYTES", 3000
        )


@pytest.mark.usefixtures("_who_writes")
def test_any_number_of_shards_and_one_process(
    strategies: dict[int, tfps.ParameterServerStrategy],
    trained: keras.Model,
    tmp_path: pathlib.Path,
) -> None:
    expected = shared_training.state_of(trained)
    path = tfps.Checkpoint(model=trained).write(tmp_path / "first")
    with strategies[3].scope():
        other = _model(seed=1)
    tfps.Checkpoint(model=other).restore(path)
    shared_training.assert_state(other, expected)
    alone = _model(seed=2)
    tfps.Checkpoint(model=alone).restore(path)
    shared_training.assert_state(alone, expected)
    # The way back.
    back = tfps.Checkpoint(model=alone).write(tmp_path / "second")
    with strategies[3].scope():
        third = _model(seed=3)
    tfps.Checkpoint(model=third).restore(back)
    shared_training.assert_state(third, expected)


def test_tensorflow_reads_whole_tables(
    trained: keras.Model, tmp_path: pathlib.Path
) -> None:
    path = tfps.Checkpoint(model=trained).write(tmp_path / "one")
    reader = tf.train.load_checkpoint(path)
    tables = [
        reader.get_tensor(key)
        for key, shape in reader.get_variable_to_shape_map().items()
        if shape == [_ROWS, 8]
    ]
    expected = trained.get_layer("table").get_weights()[0]
    assert any(np.array_equal(table, expected) for table in tables)
    plain = _model(seed=1)
    tf.train.Checkpoint(model=plain).restore(path).expect_partial()
    for ours, theirs in zip(
        [*plain.trainable_variables, *plain.optimizer.variables],
        [*trained.trainable_variables, *trained.optimizer.variables],
        strict=True,
    ):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(ours),
            keras.ops.convert_to_numpy(theirs),
            ours.path,
        )


def test_each_ps_writes_its_own(
    trained: keras.Model, tmp_path: pathlib.Path
) -> None:
    path = tfps.Checkpoint(model=trained).write(tmp_path / "one")
    # One file of each ps, and the chief's.
    assert len(list(tmp_path.glob("one.data-*"))) == 3
    assert sorted(p.name for p in tmp_path.glob(".*")) == []
    table = trained.get_layer("table").embeddings.value
    assert {p.variable.device for p in parts.parts_of("k", table)} == {
        shard.device for shard in table.variables
    }
    assert path == str(tmp_path / "one")


def test_what_does_not_fit_is_listed_and_changes_nothing(
    strategies: dict[int, tfps.ParameterServerStrategy],
    trained: keras.Model,
    tmp_path: pathlib.Path,
) -> None:
    path = tfps.Checkpoint(model=trained).write(tmp_path / "one")
    with strategies[2].scope():
        larger = _model(seed=1, rows=_ROWS + 1)
    before = shared_training.state_of(larger)
    with pytest.raises(
        errors.CheckpointMismatchError,
        match=r"float32\[501, 8\] in the program, float32\[500, 8\]",
    ):
        tfps.Checkpoint(model=larger).restore(path)
    shared_training.assert_state(larger, before)
    with pytest.raises(
        errors.CheckpointMismatchError, match="not in the checkpoint"
    ):
        tfps.Checkpoint(model=trained, extra=tf.Variable(1.0)).restore(path)
    tfps.Checkpoint(model=trained, extra=tf.Variable(1.0)).restore(
        path, strict=False
    )


def test_metrics_and_seeds_are_kept(
    trained: keras.Model, tmp_path: pathlib.Path
) -> None:
    trained.evaluate(_IDS, _TARGETS, verbose=0)
    results = trained.get_metrics_result()
    seeds = [v.value.numpy() for v in trained.variables if "seed" in v.path]
    assert seeds
    checkpoint = tfps.Checkpoint(model=trained)
    path = checkpoint.write(tmp_path / "one")
    trained.fit(_IDS[:32], _TARGETS[:32], verbose=0)
    checkpoint.restore(path)
    assert trained.get_metrics_result() == results
    for variable, seed in zip(
        [v for v in trained.variables if "seed" in v.path], seeds, strict=True
    ):
        np.testing.assert_array_equal(variable.value.numpy(), seed)


class TestManager:
    """Tests of `tfps.CheckpointManager`."""

    def test_keeps_the_newest_and_the_best(
        self, trained: keras.Model, tmp_path: pathlib.Path
    ) -> None:
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=trained), tmp_path, 2, keep_best=1
        )
        assert manager.latest_checkpoint is None
        assert manager.restore_latest() is None
        for score in (3.0, 1.0, 2.0, 4.0):
            manager.save(score=score)
        manager.sync()
        names = [pathlib.Path(p).name for p in manager.checkpoints]
        assert names == ["ckpt-2", "ckpt-3", "ckpt-4"]
        assert manager.best_checkpoint == str(tmp_path / "ckpt-2")
        assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-4")
        again = tfps.CheckpointManager(
            tfps.Checkpoint(model=trained), tmp_path, 2, keep_best=1
        )
        assert again.best_checkpoint == manager.best_checkpoint
        again.save()
        again.sync()
        assert again.latest_checkpoint == str(tmp_path / "ckpt-5")

    @pytest.mark.parametrize("kind", shared_damage.KINDS)
    def test_takes_the_newest_that_is_good(
        self,
        trained: keras.Model,
        tmp_path: pathlib.Path,
        kind: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=trained), tmp_path
        )
        manager.save()
        manager.sync()
        expected = shared_training.state_of(trained)
        trained.fit(_IDS[:64], _TARGETS[:64], verbose=0)
        manager.save()
        manager.sync()
        data = max(
            tmp_path.glob("ckpt-2.data-*"), key=lambda p: p.stat().st_size
        )
        shared_damage.damage(data, kind)
        assert manager.restore_latest() == str(tmp_path / "ckpt-1")
        shared_training.assert_state(trained, expected)
        assert "ckpt-2 cannot be read" in caplog.text

    def test_whatever_is_damaged_nothing_wrong_is_restored(
        self,
        trained: keras.Model,
        tmp_path: pathlib.Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=trained), tmp_path
        )
        manager.save()
        manager.sync()
        older = shared_training.state_of(trained)
        trained.fit(_IDS[:64], _TARGETS[:64], verbose=0)
        manager.save()
        manager.sync()
        newer = shared_training.state_of(trained)
        files = sorted(tmp_path.glob("ckpt-2.*"))
        assert len(files) > 1
        random = np.random.default_rng(1)
        num_rejected = 0
        for number in range(_NUM_DAMAGES):
            path = files[random.integers(len(files))]
            good = path.read_bytes()
            shared_damage.damage_somehow(path, random)
            caplog.clear()
            restored = manager.restore_latest()
            if restored == str(tmp_path / "ckpt-2"):
                # The damage hit bytes that nobody reads, such as padding.
                shared_training.assert_state(trained, newer)
            else:
                assert restored == str(tmp_path / "ckpt-1"), number
                assert "ckpt-2 cannot be read" in caplog.text
                shared_training.assert_state(trained, older)
                num_rejected += 1
            path.write_bytes(good)
        assert num_rejected > _NUM_DAMAGES // 2
        assert manager.restore_latest() == str(tmp_path / "ckpt-2")
        shared_training.assert_state(trained, newer)

    def test_a_file_system_that_parameter_servers_do_not_see(
        self, trained: keras.Model
    ) -> None:
        # TensorFlow's file system in the memory of this process: like an object
        # store, it is not a folder of the machine.
        folder = "ram://checkpoints/of/a/job"
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=trained), folder, 2, keep_best=1, full_every=2
        )
        for score in (3.0, 1.0, 2.0, 4.0):
            manager.save(score=score)
        manager.sync()
        expected = shared_training.state_of(trained)
        trained.fit(_IDS[:64], _TARGETS[:64], verbose=0)
        again = tfps.CheckpointManager(
            tfps.Checkpoint(model=trained), folder, 2, keep_best=1
        )
        assert again.restore_latest() == manager.latest_checkpoint
        shared_training.assert_state(trained, expected)
        assert again.best_checkpoint == manager.best_checkpoint
        again.delete_all()
        assert again.checkpoints == []
        assert again.restore_latest() is None
        assert again.save() == f"{folder}/ckpt-1"
        again.sync()
        again.delete_all()

    def test_none_is_good(
        self, trained: keras.Model, tmp_path: pathlib.Path
    ) -> None:
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=trained), tmp_path
        )
        manager.save()
        manager.sync()
        (tmp_path / "ckpt-1.index").write_bytes(b"no index")
        with pytest.raises(errors.CheckpointUnreadableError, match="ckpt-1"):
            manager.restore_latest()

    @pytest.mark.parametrize(
        "when", ["shared_folder.is_seen_by", "committing.commit"]
    )
    def test_a_full_disk_leaves_the_one_before(
        self,
        when: str,
        trained: keras.Model,
        tmp_path: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=trained), tmp_path
        )
        manager.save()
        manager.sync()
        seen: list[Any] = []
        coordinator = tfps.ClusterCoordinator(
            trained.trainable_variables[0].value._distribute_strategy
        )
        unsubscribe = coordinator.events.subscribe(seen.append)

        def full(*arguments: Any) -> None:
            raise tf.errors.ResourceExhaustedError(None, None, "disk full")

        with monkeypatch.context() as patch:
            patch.setattr(f"tfps_plugin.recovery.checkpoints.{when}", full)
            manager.save()
            with pytest.raises(tf.errors.ResourceExhaustedError):
                manager.sync()
        assert isinstance(manager.last_error, tf.errors.ResourceExhaustedError)
        (event,) = (e for e in seen if isinstance(e, events.CheckpointFailed))
        assert "disk full" in str(event)
        unsubscribe()
        assert manager.checkpoints == [str(tmp_path / "ckpt-1")]
        assert list(tmp_path.glob(".writing*")) == []
        manager.restore_latest()
        manager.save()
        manager.sync()
        assert manager.last_error is None

    def test_another_kind_of_checkpoint_is_refused(
        self, tmp_path: pathlib.Path
    ) -> None:
        with pytest.raises(TypeError, match=r"tfps\.Checkpoint"):
            tfps.CheckpointManager(tf.train.Checkpoint(), tmp_path)

    def test_tensorflows_own_manager_takes_ours(
        self, trained: keras.Model, tmp_path: pathlib.Path
    ) -> None:
        manager = tf.train.CheckpointManager(
            tfps.Checkpoint(model=trained), str(tmp_path), max_to_keep=1
        )
        manager.save()
        manager.save()
        assert manager.latest_checkpoint == str(tmp_path / "ckpt-2")
        assert list(tmp_path.glob("ckpt-1*")) == []
