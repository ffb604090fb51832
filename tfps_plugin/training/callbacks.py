"""The public module `tfps.callbacks`: Keras callbacks for clusters."""

from tfps_plugin.training.backup_and_restore import (
    BackupAndRestore as BackupAndRestore,
)
from tfps_plugin.training.cluster_metrics import (
    ClusterMetrics as ClusterMetrics,
)
from tfps_plugin.training.exports.export_callback import (
    ExportChanges as ExportChanges,
)

__all__ = ["BackupAndRestore", "ClusterMetrics", "ExportChanges"]
