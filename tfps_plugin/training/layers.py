"""The public module `tfps.layers`."""

from tfps_plugin.training.embedding.config import FeatureConfig as FeatureConfig
from tfps_plugin.training.embedding.config import TableConfig as TableConfig
from tfps_plugin.training.embedding.distributed_embedding import (
    DistributedEmbedding as DistributedEmbedding,
)
from tfps_plugin.training.embedding.dynamic_embedding import (
    DynamicEmbedding as DynamicEmbedding,
)
from tfps_plugin.variables.dynamic.policies import Admission as Admission
from tfps_plugin.variables.dynamic.policies import Eviction as Eviction

__all__ = [
    "Admission",
    "DistributedEmbedding",
    "DynamicEmbedding",
    "Eviction",
    "FeatureConfig",
    "TableConfig",
]
