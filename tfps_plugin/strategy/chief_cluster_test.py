"""Tests of the cluster that the chief finds."""

import json
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import local_cluster
from tfps_plugin.strategy import chief_cluster

_CLUSTER = {"worker": ["w0:1", "w1:1"], "ps": ["ps0:1"]}


def _resolver(job: str) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(_CLUSTER), task_type=job, task_id=0
    )


def test_the_chief_gets_the_cluster_that_its_resolver_describes() -> None:
    cluster = chief_cluster.described_by(_resolver("chief"))
    assert cluster.worker_addresses == ("w0:1", "w1:1")
    assert cluster.ps_addresses == ("ps0:1",)


@pytest.mark.parametrize("job", ["worker", "ps", "evaluator"])
def test_only_the_chief_makes_a_strategy(job: str) -> None:
    with pytest.raises(errors.ClusterConfigurationError, match=f"'{job}'"):
        chief_cluster.described_by(_resolver(job))


def test_tf_config_comes_before_the_embedded_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Embedded:
        cluster_resolver = _resolver("chief")

    monkeypatch.setattr(local_cluster, "embedded_cluster", Embedded)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert chief_cluster.default_resolver() is Embedded.cluster_resolver
    described = {"cluster": _CLUSTER, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(described))
    resolver = chief_cluster.default_resolver()
    assert resolver is not Embedded.cluster_resolver
    assert chief_cluster.described_by(resolver).ps_addresses == ("ps0:1",)


def test_a_file_describes_the_cluster_and_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "cluster.json"
    monkeypatch.setenv("TFPS_CLUSTER_FILE", str(path))
    resolver = chief_cluster.default_resolver()
    with pytest.raises(errors.ClusterConfigurationError, match="json"):
        chief_cluster.described_by(resolver)
    path.write_text('{"worker": ["a:1"], "ps": ["b:1"]}')
    assert chief_cluster.described_by(resolver).worker_addresses == ("a:1",)
    path.write_text('{"worker": ["a:1", "c:1"], "ps": ["b:1"]}')
    described = chief_cluster.described_by(resolver)
    assert described.worker_addresses == ("a:1", "c:1")
    path.write_text("{")
    with pytest.raises(errors.ClusterConfigurationError, match="Expected JSON"):
        chief_cluster.described_by(resolver)
