"""The public module `tfps.layers`."""

from tfps_plugin.training.embedding.config import FeatureConfig as FeatureConfig
from tfps_plugin.training.embedding.config import TableConfig as TableConfig
from tfps_plugin.training.embedding.distributed_embedding import (
    DistributedEmbedding as DistributedEmbedding,
)

__all__ = ["DistributedEmbedding", "FeatureConfig", "TableConfig"]
