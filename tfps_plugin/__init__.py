"""Parameter-server training for Keras 3.

    import tfps_plugin as tfps

    strategy = tfps.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([...])
        model.compile(...)
    model.fit(tfps.DatasetCreator(dataset_fn), steps_per_epoch=100)

What stands in `__all__` is the public face; the rest may change. A name is
loaded when it is first asked for, so that this import alone costs
milliseconds and needs no TensorFlow: the command line lives on that.

Files and folders, from the top floor down (each imports only from below it):

    quiet.py      hides what TensorFlow logs at every start
    launcher/     starts a cluster on this machine and watches it
    dashboard/    the live page of a job
    evaluation/   the evaluator beside the training
    deployment/   manifests for Kubernetes, Compose and Slurm
    planning/     what a job will take, before it runs
    training/     the Keras face: fit, evaluate, predict
    telemetry/    gathers what a job is, and serves it
    recovery/     checkpoints, failover
    coordinator/  who runs what, and what happens when it fails
    strategy/     the tf.distribute face
    transport/    fewer and smaller messages
    inputs/       what a worker reads
    variables/    what a parameter is and where it lives
    cluster/      who is in the cluster, and are they alive
    monitoring/   counters, events, states of a job, and what shows them
    exports/      exported tables, for processes that serve them
    _compat/      the only door to private TensorFlow and Keras API
    errors.py     the exception tree; task_errors.py: those of TensorFlow's kind
"""

import importlib
import os
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    # The same names once more, for type checkers and editors.
    from tfps_plugin import errors as errors
    from tfps_plugin.cluster.local_cluster import LocalCluster as LocalCluster
    from tfps_plugin.cluster.task import init as init
    from tfps_plugin.coordinator.closures.remote_value import (
        PerWorkerValues as PerWorkerValues,
    )
    from tfps_plugin.coordinator.closures.remote_value import (
        RemoteValue as RemoteValue,
    )
    from tfps_plugin.coordinator.cluster_coordinator import (
        ClusterCoordinator as ClusterCoordinator,
    )
    from tfps_plugin.evaluation.export_best import ExportBest as ExportBest
    from tfps_plugin.evaluation.sidecar_evaluator import (
        SidecarEvaluator as SidecarEvaluator,
    )
    from tfps_plugin.exports import serving as serving
    from tfps_plugin.inputs.dataset_creator import (
        DatasetCreator as DatasetCreator,
    )
    from tfps_plugin.monitoring import events as events
    from tfps_plugin.recovery.checkpoints.checkpoint import (
        Checkpoint as Checkpoint,
    )
    from tfps_plugin.recovery.checkpoints.checkpoint_manager import (
        CheckpointManager as CheckpointManager,
    )
    from tfps_plugin.strategy.consistency import Async as Async
    from tfps_plugin.strategy.consistency import (
        BoundedStaleness as BoundedStaleness,
    )
    from tfps_plugin.strategy.consistency import Sync as Sync
    from tfps_plugin.strategy.monitoring_options import (
        MonitoringOptions as MonitoringOptions,
    )
    from tfps_plugin.strategy.options import (
        CommunicationOptions as CommunicationOptions,
    )
    from tfps_plugin.strategy.options import RecoveryOptions as RecoveryOptions
    from tfps_plugin.strategy.options import (
        SchedulingOptions as SchedulingOptions,
    )
    from tfps_plugin.strategy.options import StartupOptions as StartupOptions
    from tfps_plugin.strategy.parameter_server_strategy import (
        ParameterServerStrategy as ParameterServerStrategy,
    )
    from tfps_plugin.strategy.placement.ps_computation import on_ps as on_ps
    from tfps_plugin.telemetry.monitor import cluster_state as cluster_state
    from tfps_plugin.training import callbacks as callbacks
    from tfps_plugin.training import layers as layers
    from tfps_plugin.training.exports.exporters import (
        export_changes as export_changes,
    )
    from tfps_plugin.variables.kinds.sharded_variable import (
        ShardedVariable as ShardedVariable,
    )
    from tfps_plugin.variables.sharding import partitioners as partitioners
    from tfps_plugin.variables.storage.tiered_storage import (
        TieredStorage as TieredStorage,
    )

# Name -> the module that defines it; a module's name -> that module.
_HOMES = {
    "Async": "tfps_plugin.strategy.consistency",
    "BoundedStaleness": "tfps_plugin.strategy.consistency",
    "Checkpoint": "tfps_plugin.recovery.checkpoints.checkpoint",
    "CheckpointManager": "tfps_plugin.recovery.checkpoints.checkpoint_manager",
    "ClusterCoordinator": "tfps_plugin.coordinator.cluster_coordinator",
    "CommunicationOptions": "tfps_plugin.strategy.options",
    "DatasetCreator": "tfps_plugin.inputs.dataset_creator",
    "ExportBest": "tfps_plugin.evaluation.export_best",
    "LocalCluster": "tfps_plugin.cluster.local_cluster",
    "MonitoringOptions": "tfps_plugin.strategy.monitoring_options",
    "TieredStorage": "tfps_plugin.variables.storage.tiered_storage",
    "ParameterServerStrategy": "tfps_plugin.strategy.parameter_server_strategy",
    "PerWorkerValues": "tfps_plugin.coordinator.closures.remote_value",
    "RecoveryOptions": "tfps_plugin.strategy.options",
    "RemoteValue": "tfps_plugin.coordinator.closures.remote_value",
    "SchedulingOptions": "tfps_plugin.strategy.options",
    "ShardedVariable": "tfps_plugin.variables.kinds.sharded_variable",
    "SidecarEvaluator": "tfps_plugin.evaluation.sidecar_evaluator",
    "StartupOptions": "tfps_plugin.strategy.options",
    "Sync": "tfps_plugin.strategy.consistency",
    "cluster_state": "tfps_plugin.telemetry.monitor",
    "callbacks": "tfps_plugin.training.callbacks",
    "errors": "tfps_plugin.errors",
    "events": "tfps_plugin.monitoring.events",
    "export_changes": "tfps_plugin.training.exports.exporters",
    "init": "tfps_plugin.cluster.task",
    "layers": "tfps_plugin.training.layers",
    "on_ps": "tfps_plugin.strategy.placement.ps_computation",
    "partitioners": "tfps_plugin.variables.sharding.partitioners",
    "serving": "tfps_plugin.exports.serving",
}

# The strategy stands below the Keras face and cannot import it; yet whoever
# has a strategy expects `fit` to know it. Loading this registers the hooks.
_LOADED_TOO = {"ParameterServerStrategy": "tfps_plugin.training.patches.hooks"}

__all__ = [
    "Async",
    "BoundedStaleness",
    "Checkpoint",
    "CheckpointManager",
    "ClusterCoordinator",
    "CommunicationOptions",
    "DatasetCreator",
    "ExportBest",
    "LocalCluster",
    "MonitoringOptions",
    "ParameterServerStrategy",
    "PerWorkerValues",
    "RecoveryOptions",
    "RemoteValue",
    "SchedulingOptions",
    "ShardedVariable",
    "SidecarEvaluator",
    "StartupOptions",
    "Sync",
    "TieredStorage",
    "callbacks",
    "cluster_state",
    "errors",
    "events",
    "export_changes",
    "init",
    "layers",
    "on_ps",
    "partitioners",
    "serving",
]


def __getattr__(name: str) -> Any:
    """Loads a public name, or the version, when it is first asked for."""
    if name == "__version__":
        # Imported here because it alone would double the cost of the import.
        from importlib import metadata

        return metadata.version(__name__)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _LOADED_TOO:
        importlib.import_module(_LOADED_TOO[name])
    module = importlib.import_module(home)
    value = module if home.endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _log_as_asked() -> None:
    """Logs JSON if the environment asks for it (docs/logging.md)."""
    # Seldom, and `logging` alone would double the cost of the import.
    if os.environ.get("TFPS_LOG_FORMAT"):
        from tfps_plugin.cluster.output import json_lines

        json_lines.apply(os.environ)


_log_as_asked()
