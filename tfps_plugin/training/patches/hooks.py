"""Installs parameter-server training with the first strategy.

Importing this module replaces nothing: every new strategy calls `install`.
"""

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.recovery import failover
from tfps_plugin.recovery.resharding import resharder
from tfps_plugin.recovery.resharding import traffic_placement
from tfps_plugin.strategy import parameter_server_strategy
from tfps_plugin.telemetry import monitor

# Saved models may refer to its classes: a strategy registers them with Keras.
from tfps_plugin.training import layers as layers
from tfps_plugin.training.steps.scheduled import traced_steps


def install(strategy: object = None) -> None:
    """Applies the table of patches, unless it is already applied.

    Args:
        strategy: The strategy that was just created; None: only patches.
    """
    patches.apply(patch_table.ROWS)
    if strategy is not None:
        failover.install(strategy)
        resharder.install(strategy)
        traffic_placement.install(strategy)
        traced_steps.install(strategy)
        monitor.install(strategy)


parameter_server_strategy.construction_hooks.append(install)
