"""The public module `tfps.callbacks`: Keras callbacks for clusters."""

from tfps_plugin.training.backup_and_restore import (
    BackupAndRestore as BackupAndRestore,
)

__all__ = ["BackupAndRestore"]
