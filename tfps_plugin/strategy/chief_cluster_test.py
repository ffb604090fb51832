"""Tests of the cluster that the chief finds."""

import json
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import local_cluster
from tfps_plugin.strategy import chief_cluster
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)

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


def _tf_config_resolver(monkeypatch: pytest.MonkeyPatch, job: str) -> Any:
    described = {"cluster": _CLUSTER, "task": {"type": job, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(described))
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> str:
    """Returns the path of a file that describes another cluster."""
    path = tmp_path / "cluster.json"
    path.write_text('{"worker": ["a:1"], "ps": ["b:1"]}')
    monkeypatch.setenv("TFPS_CLUSTER_FILE", str(path))
    return str(path)


@pytest.mark.parametrize("job", ["chief", "master"])
def test_the_file_takes_the_place_of_tf_config(
    file: str,
    job: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = _tf_config_resolver(monkeypatch, job)
    for resolver, elastic in (
        chief_cluster.resolver_to_follow(given, None),
        chief_cluster.resolver_to_follow(None, None),
    ):
        assert elastic
        described = chief_cluster.described_by(resolver)
        assert described.worker_addresses == ("a:1",)
    # What the program says counts.
    for says in (True, False):
        follows = chief_cluster.resolver_to_follow(given, says)
        assert follows == (given, says)
        assert chief_cluster.resolver_to_follow(None, says)[1] == says
    assert not caplog.text


def test_the_file_makes_no_chief_of_a_worker(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = _tf_config_resolver(monkeypatch, "worker")
    with pytest.raises(errors.ClusterConfigurationError, match="'worker'"):
        chief_cluster.resolver_to_follow(given, None)


def test_a_file_that_is_not_followed_is_told_of(
    file: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(tf.distribute.cluster_resolver.TFConfigClusterResolver):
        """A resolver of the program."""

    for given in (_resolver("chief"), Own()):
        caplog.clear()
        follows = chief_cluster.resolver_to_follow(given, True)
        assert follows == (given, True)
        assert not caplog.text
        for says in (None, False):
            caplog.clear()
            follows = chief_cluster.resolver_to_follow(given, says)
            assert follows == (given, False)
            assert "`tfps scale`" in caplog.text
            assert f"cluster_resolver={type(given).__name__}" in caplog.text
            assert "Leave cluster_resolver out" in caplog.text


def test_another_choice_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="elastic to be True") as told:
        ParameterServerStrategy(_resolver("chief"), elastic="yes")  # type: ignore[arg-type]
    assert "Received: elastic='yes'. Pass True to follow" in str(told.value)


def test_without_a_file_only_what_is_said_is_followed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TFPS_CLUSTER_FILE", raising=False)
    for given in (
        _resolver("chief"),
        _tf_config_resolver(monkeypatch, "chief"),
    ):
        for says in (None, False, True):
            follows = chief_cluster.resolver_to_follow(given, says)
            assert follows == (given, bool(says))
    assert not caplog.text


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
