"""The public module `tfps.serving`: reads exported tables, with NumPy only."""

from tfps_plugin.exports.snapshot import Snapshot as Snapshot
from tfps_plugin.exports.table import Table as Table
from tfps_plugin.exports.tables import Tables as Tables

__all__ = ["Snapshot", "Table", "Tables"]
