"""Descriptions of a cluster that change, for strategies that follow them."""

import json
import os
import pathlib
import types
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Gives the jobs of the cluster from now on.
Describe = Callable[[Mapping[str, Sequence[str]]], None]


def of_file(path: pathlib.Path) -> Describe:
    """Returns what writes a file, as a whole."""

    def describe(jobs: Mapping[str, Sequence[str]]) -> None:
        other = path.with_suffix(".other")
        other.write_text(json.dumps(jobs))
        other.rename(path)

    return describe


def of_tf_config() -> tuple[Any, Describe]:
    """Returns TensorFlow's resolver of `TF_CONFIG`, and what sets that."""

    def describe(jobs: Mapping[str, Sequence[str]]) -> None:
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": jobs, "task": {"type": "chief", "index": 0}}
        )

    return tf.distribute.cluster_resolver.TFConfigClusterResolver(), describe


def of_pods() -> tuple[Any, Describe]:
    """Returns TensorFlow's resolver of Kubernetes, and what sets its pods.

    The list of three workers has the last one first.
    """
    pods: dict[str, list[Any]] = {}
    port = _Port()

    def list_pods(label_selector: str) -> Any:
        return types.SimpleNamespace(items=pods[label_selector])

    def describe(jobs: Mapping[str, Sequence[str]]) -> None:
        for job, addresses in jobs.items():
            pods[job] = [
                types.SimpleNamespace(
                    metadata=types.SimpleNamespace(name=name),
                    status=_Status(address, port),
                )
                for name, address in zip("bca", addresses, strict=False)
            ]

    client = types.SimpleNamespace(list_pod_for_all_namespaces=list_pods)
    resolver = tf.distribute.cluster_resolver.KubernetesClusterResolver(
        {"worker": ["worker"], "ps": ["ps"]},
        tf_server_port=port,
        override_client=client,
    )
    return resolver, describe


class _Port:
    """Port of the pod whose host was read last: here all pods have one host.

    Attributes:
        number: The port.
    """

    number = ""

    def __str__(self) -> str:
        return self.number


class _Status:
    """Status of a pod that runs.

    Attributes:
        phase: Its phase.
    """

    phase = "Running"

    def __init__(self, address: str, port: _Port) -> None:
        self._address = address
        self._port = port

    @property
    def host_ip(self) -> str:
        """Its host; its port is then the one of all pods."""
        host, _, self._port.number = self._address.rpartition(":")
        return host
