"""Ways to pack steps, and an epoch that shows them.

docs/inputs_and_callbacks.md promises the numbers.
"""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

import tfps_plugin as tfps

from . import bench
from . import placements
from .bench import Bench

NUM_WORKERS = 2
# Many more than may be in flight, so that a lag cannot hide in an epoch.
STEPS = 200


class Pace(NamedTuple):
    """A way to pack steps.

    Attributes:
        steps_per_closure: Option of `tfps.SchedulingOptions`.
        in_flight: Maximum number of steps in flight.
    """

    steps_per_closure: int | None
    in_flight: int


STEP_BY_STEP = "steps_per_closure=1"
PACES = {
    STEP_BY_STEP: Pace(1, 4 * NUM_WORKERS),
    "steps_per_closure=None": Pace(None, 4 * 10 * NUM_WORKERS),
}
# A power for each step: the average of a few shows the largest of them.
BASE = 8.0


class Counting(keras.Model):
    """Model whose logs show how many steps have ended.

    Attributes:
        ended: Number of steps. It is no scalar, of which workers would have
            copies, as of the optimizer's count.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ended = tf.Variable([0.0], trainable=False, dtype="float64")

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        with tf.control_dependencies([*logs.values()]):
            counted = self.ended.assign_add([1.0])
        with tf.control_dependencies([counted]):
            ended = self.ended.read_value()[0]
        return {**logs, "power": tf.pow(tf.constant(BASE, "float64"), ended)}


Benches = dict[tuple[str, str], Bench]


def benches(cluster: tfps.LocalCluster) -> Iterator[Benches]:
    """Yields the model by pace and placement; ends them afterwards.

    Args:
        cluster: A cluster with the required number of workers.
    """
    strategies = {
        (name, placement): tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            partitioner,
            scheduling=tfps.SchedulingOptions(
                steps_per_closure=pace.steps_per_closure,
                # Otherwise `fit` would try more, with more steps in flight.
                max_closures_in_flight_per_worker=2,
            ),
        )
        for name, pace in PACES.items()
        for placement, partitioner in placements.PARTITIONERS.items()
    }
    # Made here, because their threads outlive the first test that uses them.
    coordinators = [tfps.ClusterCoordinator(s) for s in strategies.values()]
    made = {}
    for key, strategy in strategies.items():
        with strategy.scope():
            made[key] = Bench(bench.build(model_class=Counting), is_ours=True)
    yield made
    for coordinator in coordinators:
        coordinator.close()


def coordinator(model: keras.Model) -> tfps.ClusterCoordinator:
    """Returns the coordinator that runs a model's steps.

    Args:
        model: The model.
    """
    return tfps.ClusterCoordinator(model.distribute_strategy)


def reset(each: Bench) -> keras.Model:
    """Returns the model in its initial state.

    Args:
        each: One of `benches`.
    """
    each.model.ended.assign([0.0])
    return each.reset()
