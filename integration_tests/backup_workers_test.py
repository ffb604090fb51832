"""Tests of steps that do without the workers that arrive last.

Their model tells which shares of workers have counted, see `shared_shares`.
"""

import functools
import logging
import pathlib
import re
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_shares
import shared_spans
import tensorflow as tf
from shared_gate import Gate
from shared_shares import NUM_EXAMPLES
from shared_shares import NUM_STEPS
from shared_shares import NUM_WORKERS
from shared_shares import X

import tfps_plugin as tfps

pytestmark = [
    pytest.mark.cluster(num_workers=NUM_WORKERS, num_ps=2),
    pytest.mark.sample(cases=5, group="backup_workers"),
]

_SLOW = 2


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    """Yields a strategy; checks that no span has left anything."""
    earlier = shared_spans.queues()
    strategy = shared_shares.make_strategy(cluster)
    yield strategy
    try:
        shared_spans.assert_nothing_is_left(earlier)
    finally:
        tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def gates(tmp_path: pathlib.Path) -> Iterator[list[Gate]]:
    """Yields two gates."""
    gates = []
    for number in range(2):
        folder = tmp_path / f"gate_{number}"
        folder.mkdir()
        gates.append(Gate(folder))
    yield gates
    for gate in gates:
        gate.close()


def _dropped(strategy: tfps.ParameterServerStrategy) -> int:
    return tfps.ClusterCoordinator(strategy).counters.value("gradients_dropped")


_both_sources = pytest.mark.parametrize(
    "source", [shared_shares.of_workers, shared_shares.of_the_chief]
)


@_both_sources
@pytest.mark.parametrize("steps_of_a_span", [5, NUM_STEPS])
def test_the_weights_are_those_of_the_shares_that_have_counted(
    strategy: tfps.ParameterServerStrategy,
    source: Callable[[], Any],
    steps_of_a_span: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with strategy.scope():
        model = shared_shares.make_model(
            shared_shares.of_step(), steps_per_execution=steps_of_a_span
        )
    with caplog.at_level(logging.INFO, "tfps_plugin"):
        history = model.fit(
            **source(), steps_per_epoch=NUM_STEPS, verbose=0
        ).history
    steps = shared_shares.steps_of(model)
    assert len(steps) == NUM_STEPS
    assert {len(shares) for shares in steps} == {NUM_WORKERS - 1}
    for worker in range(NUM_WORKERS):
        own = [s for shares in steps for s, w in shares if w == worker]
        # In the order of its input, each at most once.
        assert own == sorted({*own})
    shared_shares.assert_same(
        model, shared_shares.in_one_process(shared_shares.of_step, steps)
    )
    # Metrics are of all that was computed.
    num_counted = NUM_STEPS * (NUM_WORKERS - 1)
    num_computed = history["seen"][0] / NUM_EXAMPLES
    assert _dropped(strategy) == num_computed - num_counted
    assert f"gradients of {_dropped(strategy)} batches" in caplog.text
    told = re.findall(r"(\d+) examples of this epoch were not", caplog.text)
    if source is shared_shares.of_the_chief:
        assert told == [str(NUM_STEPS * NUM_EXAMPLES)]
    else:
        assert not told


# A script: worker 2 is held in its first step until the others come to their
# last one. They end; then it makes the rest of its input alone, but for the
# step that came too late.
_HELD = {(0, _SLOW): 1, (NUM_STEPS - 1, 0): 2}
_SCRIPT = [
    *([(step, 0), (step, 1)] for step in range(NUM_STEPS)),
    *([(step, _SLOW)] for step in range(1, NUM_STEPS)),
]


def _open_all(gates: list[Gate]) -> None:
    for gate in gates:
        gate.open()


_OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    # Parameter servers add up the norm with the help of the chief.
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), initial_scale=8.0, dynamic_growth_steps=5
    ),
}


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_a_straggler_is_left_out_and_takes_part_again(
    strategy: tfps.ParameterServerStrategy, gates: list[Gate], name: str
) -> None:
    optimizer = _OPTIMIZERS[name]
    with strategy.scope():
        model = shared_shares.make_model(
            optimizer(), gates, steps_per_execution=4 * NUM_STEPS
        )
    gates[1].once_reached(functools.partial(_open_all, gates))
    history = model.fit(**shared_shares.of_workers(_HELD), verbose=0).history
    gates[1].assert_acted()
    assert int(model.optimizer.iterations) == len(_SCRIPT)
    shared_shares.assert_same(
        model, shared_shares.in_one_process(optimizer, _SCRIPT)
    )
    assert _dropped(strategy) == 1
    assert history["seen"] == [NUM_WORKERS * NUM_STEPS * NUM_EXAMPLES]


def test_what_the_late_assign_does_not_count(
    strategy: tfps.ParameterServerStrategy, gates: list[Gate]
) -> None:
    momentum = 0.7

    def loss(target: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
        predicted = shared_shares.after_gates(gates, target, predicted)
        return tf.square(predicted[:, 0] - target[:, 0])

    with strategy.scope():
        normalization = keras.layers.BatchNormalization(momentum=momentum)
        model = keras.Sequential(
            [keras.Input((8,)), normalization, keras.layers.Dense(1)]
        )
        model.compile(
            keras.optimizers.SGD(0.1), loss, steps_per_execution=4 * NUM_STEPS
        )
    x, y = shared_shares.examples(_HELD)

    def dataset_fn(context: Any) -> tf.data.Dataset:
        worker = context.input_pipeline_id
        return tf.data.Dataset.from_tensor_slices(
            (x["x"][:, worker], y[:, worker])
        )

    gates[1].once_reached(functools.partial(_open_all, gates))
    model.fit(tfps.DatasetCreator(dataset_fn), verbose=0)
    mean, variance = np.zeros(8), np.ones(8)
    for shares in _SCRIPT:
        parts = np.stack([X[share] for share in shares])
        means = parts.mean(axis=1).mean(axis=0)
        variances = parts.var(axis=1).mean(axis=0)
        mean = momentum * mean + (1 - momentum) * means
        variance = momentum * variance + (1 - momentum) * variances
    np.testing.assert_allclose(
        normalization.moving_mean.numpy(), mean, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        normalization.moving_variance.numpy(), variance, rtol=1e-4
    )


def test_without_late_workers_a_step_sends_no_more_messages(
    cluster: tfps.LocalCluster,
) -> None:
    """The number of a step comes with the first variables of a ps."""
    sent, of_chief = [], []
    for num_backup in (0, 1):
        strategy = shared_shares.make_strategy(cluster, num_backup)
        with strategy.scope():
            model = shared_shares.make_model(shared_shares.of_step())
        model.fit(**shared_shares.of_workers(), steps_per_epoch=2, verbose=0)
        bodies = strategy.explain(model, print_fn=None).bodies
        sent.append(shared_shares.sent_by_workers(bodies))
        of_chief.append(shared_shares.sent_by_chief(bodies))
        tfps.ClusterCoordinator(strategy).close()
    assert sent[0] == sent[1]
    assert sum(sent[0])
    assert of_chief == [{}, shared_shares.RULING]


def test_backup_workers_for_nobody_are_refused(
    cluster: tfps.LocalCluster,
) -> None:
    with pytest.raises(ValueError, match=r"the 3 workers.*backup_workers=3\."):
        shared_shares.make_strategy(cluster, NUM_WORKERS)
