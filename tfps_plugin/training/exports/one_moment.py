"""Values of one moment: taken anew if the model was restored meanwhile.

When a parameter server is lost, others may go back to the checkpoint with it.
What was read of them before is of another moment than what is read after.
"""

from collections.abc import Callable
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.runtime import tensorflow_strategy
from tfps_plugin.cluster.chief import connection
from tfps_plugin.recovery import failover
from tfps_plugin.recovery.checkpoints import parts as parts_module
from tfps_plugin.recovery.failover import Failover
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

T = TypeVar("T")

_MOST_TRIES = 5


def take(failovers: list[Failover], take_once: Callable[[], T]) -> T:
    """Takes values between two restores.

    Args:
        failovers: What restores the variables, from `failovers_of`.
        take_once: Takes all values; it may be called several times.

    Returns:
        The values.

    Raises:
        tf.errors.UnavailableError: If variables are restored all the time.
        tf.errors.OpError: What `take_once` raised while none was restored.
        ParameterServerLostError: If a ps is lost for good.
    """
    for _ in range(_MOST_TRIES):
        before = [each.num_restored for each in failovers]
        if None in before:
            connection.present().part(RecoveryGate).wait()
            continue
        try:
            taken = take_once()
        except tf.errors.OpError as error:
            if (
                not chief_reads.is_about_the_cluster(error)
                or [each.num_restored for each in failovers] == before
            ):
                raise
            continue
        if [each.num_restored for each in failovers] == before:
            return taken
    raise tf.errors.UnavailableError(
        None,
        None,
        "Parameter servers were restored again and again while an export took "
        "the values of their variables, which must be of one moment. Expected: "
        "no restore meanwhile. Received: one during each of "
        f"{_MOST_TRIES} tries. Export again once parameter servers stay.",
    )


def failovers_of(model: Any) -> list[Failover]:
    """Returns what restores the weights of a model.

    Args:
        model: A Keras model; nothing restores one of this process.
    """
    found: dict[int, Failover] = {}
    for weight in model.weights:
        for part in parts_module.parts_of("", keras_compat.value_of(weight)):
            strategy = tensorflow_strategy.strategy_of(part.variable)
            known = None if strategy is None else failover.of(strategy)
            if known is not None:
                found[id(known)] = known
    return list(found.values())
