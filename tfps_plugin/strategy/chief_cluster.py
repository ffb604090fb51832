"""The cluster of a strategy, as its chief finds it."""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import local_cluster
from tfps_plugin.cluster import spec
from tfps_plugin.cluster import tf_config


def default_resolver() -> Any:
    """Returns a cluster resolver for a program that gives none.

    It reads `TF_CONFIG`. Without that, it is the resolver of the embedded
    cluster, which starts if it does not run yet.

    Raises:
        ClusterConfigurationError: If `TF_CONFIG` is wrong.
    """
    if tf_config.read_tf_config() is not None:
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return local_cluster.embedded_cluster().cluster_resolver


def described_by(resolver: Any) -> spec.ClusterSpec:
    """Returns the cluster that a resolver describes to its chief.

    Args:
        resolver: Any `tf.distribute.cluster_resolver.ClusterResolver`.

    Raises:
        ClusterConfigurationError: If it describes no usable cluster, or says
            that this process is another task than the chief.
    """
    config = tf_config.from_cluster_resolver(resolver)
    if config.job != spec.CHIEF:
        raise errors.ClusterConfigurationError(
            "Only the chief creates a ParameterServerStrategy, and this task "
            f"is not the chief. Received: task type={config.job!r}, "
            f"index={config.index}. Call tfps.init() first: workers and "
            "parameter servers serve inside it, and the evaluator gets a task "
            "whose `job` is 'evaluator'."
        )
    return config.cluster
