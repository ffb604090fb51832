"""A model whose table tells which shares of workers have counted in a step.

Who is late is nobody's to say. So the weights of the table tell afterwards in
which step each share has counted, on each parameter server; and one process
then trains with just these shares.
"""

import collections
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import shared_optimizers
import tensorflow as tf
from shared_gate import Gate

import tfps_plugin as tfps

NUM_WORKERS = 3
NUM_STEPS = 24
# Of a share.
NUM_EXAMPLES = 16
_BATCH = NUM_WORKERS * NUM_EXAMPLES
_PATIENCE_SECONDS = 3.0

_random = np.random.default_rng(0)
# Steps, workers, examples.
X = _random.normal(size=(NUM_STEPS, NUM_WORKERS, NUM_EXAMPLES, 8)).astype(
    "float32"
)
_Y = (X @ _random.normal(size=(8, 1)) + 1.0).astype("float32")
# A row for each share in the first half of a table, and another one in the
# second half, which is on the other ps.
_NUMBERS = np.arange(NUM_STEPS * NUM_WORKERS).reshape(NUM_STEPS, NUM_WORKERS)
_ROWS = 2 * _NUMBERS.size

# The share of a worker, as its number of the step and of the worker.
Share = tuple[int, int]


def make_strategy(
    cluster: tfps.LocalCluster, num_backup: int = 1, **options: Any
) -> tfps.ParameterServerStrategy:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=tfps.Sync(backup_workers=num_backup),
        sparse_update="exact",
        **options,
    )
    tfps.ClusterCoordinator(strategy, patience_seconds=_PATIENCE_SECONDS)
    return strategy


class _OfStep(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that tells the step: it is never twice another one."""

    def __call__(self, step: Any) -> Any:
        return 0.01 + 1e-5 * keras.ops.cast(step, "float32")

    def get_config(self) -> dict[str, Any]:
        return {}


def _step_of(update: float) -> tuple[int, int]:
    """Returns the step, and its number of shares, of an update of a row."""
    num_shares = round(0.01 / update)
    return round((update * num_shares - 0.01) / 1e-5), num_shares


class _Seen(keras.metrics.Sum):
    """The number of examples that workers have computed."""

    def __init__(self) -> None:
        super().__init__("seen")

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        del y_pred, sample_weight
        return super().update_state(keras.ops.ones_like(y_true[:, 0]))


def after_gates(
    gates: list[Gate], target: tf.Tensor, predicted: tf.Tensor
) -> tf.Tensor:
    """Returns predictions after the gates, which a step with a token meets."""
    # By its inputs, a step comes to a gate when it has read variables.
    is_known = tf.math.is_finite(predicted[:, 0])
    passed = [
        gate.passing(
            tf.reduce_any(is_known & tf.equal(target[:, 1], 1.0 + number))
        )
        for number, gate in enumerate(gates)
    ]
    with tf.control_dependencies(passed):
        return tf.identity(predicted)


def make_model(
    optimizer: keras.optimizers.Optimizer,
    gates: list[Gate] | None = None,
    **options: Any,
) -> keras.Model:
    """Returns a model; the second column of targets names a gate, from one."""

    def loss(target: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
        predicted = after_gates(gates or [], target, predicted)
        return tf.square(predicted[:, 0] - target[:, 0]) - predicted[:, 1]

    keras.utils.set_random_seed(1)
    x = keras.Input((8,), name="x")
    rows = keras.Input((2,), dtype="int32", name="rows")
    hidden = keras.layers.Dense(16, "tanh")(x)
    shares = keras.layers.Embedding(
        _ROWS, 1, embeddings_initializer="zeros", name="shares"
    )(rows)
    outputs = keras.layers.Concatenate()(
        [keras.layers.Dense(1)(hidden), keras.ops.sum(shares, axis=1)]
    )
    model = keras.Model({"x": x, "rows": rows}, outputs)
    model.compile(optimizer, loss, metrics=[_Seen()], **options)
    optimizer.build(model.trainable_variables)
    return model


def examples(
    gates: dict[Share, int] | None = None, *, is_constant: bool = False
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the examples of all shares `(step, worker, example)`.

    Args:
        gates: The number of the gate, from one, at which a share is held.
        is_constant: Whether all shares have the examples of the first.
    """
    x, y, numbers = X, _Y, _NUMBERS
    if is_constant:
        x, y = (np.broadcast_to(part[:1, :1], part.shape) for part in (x, y))
        numbers = np.zeros_like(numbers)
    numbers = np.repeat(numbers[..., None], NUM_EXAMPLES, -1)
    targets = np.concatenate([y, np.zeros_like(y)], -1)
    for share, gate in (gates or {}).items():
        targets[(*share, slice(None), 1)] = gate
    rows = np.stack([numbers, numbers + _NUMBERS.size], -1).astype("int32")
    return {"x": x, "rows": rows}, targets


def of_workers(
    gates: dict[Share, int] | None = None, *, is_constant: bool = False
) -> Any:
    """Returns input that each worker reads for itself."""
    x, y = examples(gates, is_constant=is_constant)

    def dataset_fn(context: Any) -> tf.data.Dataset:
        worker = context.input_pipeline_id
        own = {name: part[:, worker] for name, part in x.items()}
        return tf.data.Dataset.from_tensor_slices((own, y[:, worker]))

    return {"x": tfps.DatasetCreator(dataset_fn)}


def of_the_chief(
    gates: dict[Share, int] | None = None, *, is_constant: bool = False
) -> Any:
    """Returns input that the chief reads and cuts."""
    x, y = examples(gates, is_constant=is_constant)
    return {
        "x": {n: each.reshape(-1, *each.shape[3:]) for n, each in x.items()},
        "y": y.reshape(-1, 2),
        "batch_size": _BATCH,
        "shuffle": False,
    }


def in_one_process(
    make: Callable[[], keras.optimizers.Optimizer],
    steps: list[list[Share]],
) -> list[np.ndarray]:
    """Returns the weights of one process that trains with some shares."""
    x, y = examples()
    with tf.device("/device:CPU:0"):
        # Norms are those of the sum of a row's gradients.
        model = make_model(shared_optimizers.summing(make()))
        for shares in steps:
            model.train_on_batch(
                {
                    name: np.concatenate([part[share] for share in shares])
                    for name, part in x.items()
                },
                np.concatenate([y[share] for share in shares]),
            )
        return model.get_weights()


def assert_same(model: keras.Model, expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=1e-5 * max(np.abs(theirs).max(), 0.01)
        )


def steps_of(model: keras.Model) -> list[list[Share]]:
    """Returns the shares of each step, as told by the table.

    Checks that both ps have counted the same.
    """
    table = model.get_layer("shares").get_weights()[0][:, 0]
    halves = np.split(table, 2)
    np.testing.assert_array_equal(halves[0], halves[1])
    steps: dict[int, list[Share]] = collections.defaultdict(list)
    num_shares = {}
    for number, update in enumerate(halves[0]):
        if update:
            step, num_shares[number] = _step_of(update)
            steps[step].append(divmod(number, NUM_WORKERS))
    made = [
        sorted(steps[step], key=lambda s: s[1]) for step in range(len(steps))
    ]
    for step, shares in enumerate(made):
        for share in shares:
            assert num_shares[_NUMBERS[share]] == len(shares), (step, shares)
        # One share of a worker at most.
        assert len({worker for _, worker in shares}) == len(shares)
    assert int(model.optimizer.iterations) == len(made)
    return made


def of_step() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(_OfStep())


# Messages of a step between the chief and parameter servers. The first one
# counts arrivals: it gets what the loop works on, and answers with a ruling.
RULING = {
    ("chief", "ps 0"): 3,
    ("ps 0", "chief"): 2,
    ("chief", "ps 1"): 1,
}


def sent_by_workers(bodies: Any) -> list[int]:
    """Returns the messages of each function of workers."""
    return [body.num_parcels for body in bodies if body.runs_on == "worker"]


def sent_by_chief(bodies: Any) -> dict[tuple[str, str], int]:
    """Returns the messages of functions of the chief, by their tasks."""
    found: dict[tuple[str, str], int] = {}
    for body in bodies:
        if body.runs_on == "chief":
            for each in body.sent:
                way = _task(each.source), _task(each.destination)
                found[way] = found.get(way, 0) + each.num_parcels
    return found


def _task(place: str) -> str:
    return f"ps {place.rpartition(':')[2]}" if place else "chief"
