"""Placements of the variables: whole on a ps, or in shards on two."""

import tfps_plugin as tfps
from tfps_plugin.variables.sharding.partitioners import Partitioner

PARTITIONERS: dict[str, Partitioner | None] = {
    "whole": None,
    "sharded": tfps.partitioners.FixedShardsPartitioner(2),
}
NAMES = tuple(PARTITIONERS)
