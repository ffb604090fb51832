"""The cluster of a strategy, as its chief finds it."""

import json
import logging
import os
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import local_cluster
from tfps_plugin.cluster import spec
from tfps_plugin.cluster import tf_config

_logger = logging.getLogger("tfps_plugin.strategy")


class FileClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """A cluster resolver that reads a file, again each time that it is asked.

    The file is JSON, as the `cluster` of `TF_CONFIG`: the addresses of each
    job. Who changes it replaces it as a whole, by renaming another one, as
    Kubernetes does with a mounted ConfigMap.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.task_type = spec.CHIEF
        self.task_id = 0

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Returns the cluster that the file describes now.

        Raises:
            ClusterConfigurationError: If it cannot be read, or describes none.
        """
        try:
            with open(self._path, encoding="utf-8") as file:
                jobs = json.load(file)
        except (OSError, ValueError) as error:
            raise errors.ClusterConfigurationError(
                "The description of the cluster cannot be read. Expected JSON "
                'such as {"worker": ["host:port", ...], "ps": [...]}. '
                f"Received: {spec.FILE_VARIABLE}={self._path!r}: {error}"
            ) from error
        return tf.train.ClusterSpec(spec.ClusterSpec.from_dict(jobs).as_dict())

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns an empty name: the chief is this process."""
        del task_type, task_id, rpc_layer
        return ""


def default_resolver() -> Any:
    """Returns a cluster resolver for a program that gives none.

    It reads the file that `TFPS_CLUSTER_FILE` names, or else `TF_CONFIG`.
    Without both, it is the resolver of the embedded cluster, which starts if it
    does not run yet.

    Raises:
        ClusterConfigurationError: If the file or `TF_CONFIG` is wrong.
    """
    path = _path()
    if path:
        return FileClusterResolver(path)
    if tf_config.read_tf_config() is not None:
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return local_cluster.embedded_cluster().cluster_resolver


def resolver_to_follow(resolver: Any, elastic: bool | None) -> tuple[Any, bool]:
    """Returns the cluster resolver of a strategy, and whether it is followed.

    The file that `TFPS_CLUSTER_FILE` names takes the place of `TF_CONFIG` also
    if the program gives TensorFlow's resolver of that: `tfps run` sets both.

    Args:
        resolver: The one that the program gives; None: none.
        elastic: Whether to follow it, as the program says; None: only a file.

    Raises:
        ClusterConfigurationError: If the file or `TF_CONFIG` is wrong.
    """
    path = _path()
    if not resolver:
        resolver = default_resolver()
    elif path and not elastic:
        if (
            type(resolver)
            is not tf.distribute.cluster_resolver.TFConfigClusterResolver
        ):
            _logger.warning(
                "The strategy does not follow the description of the cluster "
                "that %s names, nor does it `tfps scale`: it has a cluster "
                "resolver of its own. Expected none, or TensorFlow's "
                "TFConfigClusterResolver. Received: cluster_resolver=%s, "
                "elastic=%r. Leave cluster_resolver out to follow the file, or "
                "pass elastic=True to follow what the resolver describes.",
                spec.FILE_VARIABLE,
                type(resolver).__name__,
                elastic,
            )
        elif elastic is None:
            # It may be that of another task than the chief.
            described_by(resolver)
            resolver = FileClusterResolver(path)
    if elastic is None:
        elastic = isinstance(resolver, FileClusterResolver)
    return resolver, bool(elastic)


def _path() -> str:
    """Returns the path of the file that describes the cluster, or ""."""
    return os.environ.get(spec.FILE_VARIABLE, "").strip()


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
