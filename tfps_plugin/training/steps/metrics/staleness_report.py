"""Report of the staleness of an epoch's updates: a log line and counters."""

import logging
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.staleness import Staleness
from tfps_plugin.training import step_build
from tfps_plugin.training.optimizers import update_counts
from tfps_plugin.variables.chief import chief_reads

_logger = logging.getLogger("tfps_plugin.training")


def report(model: Any, counters: Counters) -> None:
    """Logs and counts the updates of a model since the last time.

    Costs a message for each optimizer. Does nothing if there was no update
    whose staleness is known, as in synchronous training.

    Args:
        model: The model that `fit` trains; none of its steps may run.
        counters: Counters of the coordinator.
    """
    found = _taken(model)
    if not found.num_updates:
        return
    _logger.info(
        "Staleness of the %d updates of %s in this epoch: %s.",
        found.num_updates,
        model.name,
        found,
    )
    for name, number in found.counts().items():
        counters.increment(name, number)
    counters.raise_to("staleness_largest", found.largest)


def _taken(model: Any) -> Staleness:
    found = Staleness()
    for counts in update_counts.known(step_build.optimizers_of(model)):
        try:
            found += counts.take()
        except (errors.ParameterServerLostError, tf.errors.OpError) as error:
            if isinstance(
                error, tf.errors.OpError
            ) and not chief_reads.is_about_the_cluster(error):
                raise
            _logger.warning(
                "A parameter server does not answer; how stale the updates of "
                "%s were is not known. Received: %s",
                model.name,
                str(error).partition("\n")[0],
            )
    return found
