"""Tests of tables by id that sum up known numbers while tasks die, come and go.

Some are stacked, and meet the same ids.
"""

import pathlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps

# Each test loses tasks, or adds some, and takes long.
pytestmark = pytest.mark.sample(cases=2, group="faults_sums_by_id")

_BATCH = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


def _summed(
    capacities: Sequence[int], eviction: Any = None
) -> tuple[keras.Model, list[Any]]:
    """Returns a model of one table, or of several that are stacked.

    All meet the same ids. Each step adds to the row of an id, for each of its
    places in the batch, one eighth.
    """
    ids = keras.Input((3,), dtype="int64")
    configs = [
        tfps.layers.TableConfig(
            f"ids{number}",
            None,
            4,
            "zeros",
            combiner="sum",
            capacity=capacity,
            eviction=eviction,
        )
        for number, capacity in enumerate(capacities)
    ]
    layer = tfps.layers.DistributedEmbedding(
        [
            tfps.layers.FeatureConfig(each.name, each, (None, 3), (None, 4))
            for each in configs
        ]
    )
    rows = layer([ids] * len(configs))
    model = keras.Model(ids, rows)
    model.compile(
        keras.optimizers.SGD(1.0),
        [lambda _, rows: -keras.ops.sum(rows, axis=1)] * len(configs),
    )
    model.optimizer.build(model.trainable_variables)
    # Two tables have their variables in common.
    assert len(model.trainable_variables) == 1
    return model, [layer.table(each.name) for each in configs]


# Ids that each example has, and one of its own: the room for these runs out
# after about 120 batches.
_HOT = [-1, -2]
_COLD_STEPS = 300
_SAVED_AT, _KILLED_AT = 150, 200


@pytest.mark.parametrize("capacities", [(200,), (300, 200)], ids=str)
@pytest.mark.parametrize("lost", [(1,), (0, 1)], ids=str)
def test_a_table_that_evicts_is_its_checkpoint_and_the_steps_after_it(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    lost: tuple[int, ...],
    capacities: tuple[int, ...],
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=tfps.Sync(),
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    seen = Seen(coordinator)
    with strategy.scope():
        model, tables = _summed(
            capacities, tfps.layers.Eviction("least_recent")
        )
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    steps = {}

    def save() -> None:
        manager.save()
        manager.sync()
        steps["saved"] = int(model.optimizer.iterations)
        assert all(each.statistics()["evicted"] > 0 for each in tables)

    def kill() -> None:
        steps["killed"] = int(model.optimizer.iterations)
        for index in lost:
            cluster.kill("ps", index)
        for index in lost:
            cluster.start("ps", index)

    cold = np.arange(_COLD_STEPS * _BATCH)
    ids = np.stack([*(np.full_like(cold, one) for one in _HOT), cold], 1)
    model.fit(
        ids,
        [np.zeros((len(ids), 1))] * len(tables),
        batch_size=_BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[At({_SAVED_AT: save, _KILLED_AT: kill})],
    )
    assert sorted(set(seen.recovered())) == list(lost)
    assert steps["saved"] < steps["killed"]
    done = int(model.optimizer.iterations)
    assert _SAVED_AT <= done < _COLD_STEPS
    first, last = (steps[each] * _BATCH for each in ("saved", "killed"))
    for table in tables:
        exported, rows = table.export()
        assert len(set(exported)) == len(exported) == table.size()
        found = dict(zip(exported.tolist(), rows[:, 0].tolist(), strict=True))
        # The truth: what no step after the checkpoint has done is not there.
        assert [found.pop(one) for one in _HOT] == [done, done]
        assert set(found.values()) == {1 / _BATCH}
        assert not [one for one in found if first <= one < last]
        # None of those of the last steps is lost.
        kept = range((_COLD_STEPS - 60) * _BATCH, len(cold))
        assert set(found).issuperset(kept)
        assert table.statistics()["evicted"] > 0
    coordinator.close()


# With another cluster, the job of the one that others share is over.
_STEPS = 60


@pytest.mark.parametrize(
    "consistency", [tfps.Async(), tfps.Sync()], ids=lambda c: type(c).__name__
)
def test_no_number_of_stacked_tables_is_lost_while_ps_come_and_go(
    consistency: Any,
) -> None:
    random = np.random.default_rng(8)
    pool = random.integers(-(2**63), 2**63 - 1, 400)
    # New ids come all the time: these are the places of a pool that grows.
    largest = 40 + 5 * np.arange(_STEPS).repeat(_BATCH)[:, None]
    ids = pool[(random.random((_STEPS * _BATCH, 3)) * largest).astype(int)]
    with tfps.LocalCluster(num_workers=2, num_ps=2) as own:
        strategy = tfps.ParameterServerStrategy(
            own.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            consistency=consistency,
        )
        coordinator = tfps.ClusterCoordinator(strategy)

        def add() -> None:
            coordinator.add_ps(own.add_ps())

        with strategy.scope():
            model, tables = _summed((2000, 700))
        model.fit(
            ids,
            [np.zeros((len(ids), 1))] * 2,
            batch_size=_BATCH,
            shuffle=False,
            epochs=3,
            verbose=0,
            callbacks=[
                At({20: add, _STEPS + 20: lambda: coordinator.remove_ps(0)})
            ],
        )
        met, counts = np.unique(ids, return_counts=True)
        truth = dict(zip(met.tolist(), 3 * counts / _BATCH, strict=True))
        for table in tables:
            exported, rows = table.export()
            found = dict(zip(exported.tolist(), rows.tolist(), strict=True))
            assert len(exported) == len(found)
            assert found == {one: [row] * 4 for one, row in truth.items()}
        coordinator.close()
