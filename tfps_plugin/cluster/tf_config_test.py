"""Tests of reading and refusing `TF_CONFIG` and resolvers."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin import errors
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_JOBS = {"worker": ["a:1", "b:1"], "ps": ["c:1"], "chief": ["d:1"]}


def _tf_config(**changes: Any) -> str:
    config = {"cluster": _JOBS, "task": {"type": "worker", "index": 1}}
    return json.dumps({**config, **changes})


def _cluster(**changes: Any) -> str:
    return _tf_config(cluster={**_JOBS, **changes})


def test_reads_tf_config() -> None:
    config = tf_config.parse_tf_config(_tf_config())
    assert (config.job, config.index) == ("worker", 1)
    assert config.task == Task("worker", 1, "b:1")
    assert config.cluster == ClusterSpec(("a:1", "b:1"), ("c:1",), "d:1")


def test_an_evaluator_is_taken_out() -> None:
    text = _tf_config(
        # Any address will do: it is never connected to.
        cluster={**_JOBS, "evaluator": ["nowhere"]},
        task={"type": "evaluator", "index": 3},
    )
    config = tf_config.parse_tf_config(text)
    assert config.job == "evaluator"
    assert config.cluster == ClusterSpec.from_dict(_JOBS)
    with pytest.raises(errors.ClusterConfigurationError, match="no task"):
        _ = config.task


def test_master_is_an_old_name_of_the_chief() -> None:
    config = tf_config.parse_tf_config(
        json.dumps(
            {
                "cluster": {
                    "worker": ["a:1"],
                    "ps": ["b:1"],
                    "master": ["c:1"],
                },
                "task": {"type": "master", "index": 0},
            }
        )
    )
    assert config.job == "chief"
    assert config.cluster.chief_address == "c:1"


def test_a_chief_need_not_have_an_address() -> None:
    text = _tf_config(
        cluster={"worker": ["a:1"], "ps": ["b:1"]}, task={"type": "chief"}
    )
    config = tf_config.parse_tf_config(text)
    assert (config.job, config.index) == ("chief", 0)
    assert config.cluster.chief is None
    assert config.cluster.with_chief("c:1").chief == Task("chief", 0, "c:1")


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": " "}])
def test_no_tf_config_is_none(environ: dict[str, str]) -> None:
    assert tf_config.read_tf_config(environ) is None


def test_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", _tf_config())
    assert tf_config.read_tf_config() == tf_config.parse_tf_config(_tf_config())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{worker", ["not valid JSON", "TF_CONFIG='{worker'"]),
        ("[]", ["must be a JSON object", "TF_CONFIG='[]'"]),
        ("{}", ["no cluster", "cluster=None"]),
        (_tf_config(cluster={}), ["no cluster", "cluster={}"]),
        (_tf_config(cluster="a:1"), ["map each job", "cluster='a:1'"]),
        (_tf_config(cluster=["a:1"]), ["map each job", "cluster=['a:1']"]),
        (
            _cluster(wroker=["x:1"]),
            ["unknown job", "cluster.wroker=['x:1']. Give"],
        ),
        (_cluster(master=["x:1"]), ["both 'chief'", "cluster.master"]),
        (
            _cluster(chief=["x:1", "y:1"]),
            ["at most one", "cluster.chief", "Leave one"],
        ),
        (_cluster(ps=[]), ["no ps", "cluster.ps=[]"]),
        (_cluster(worker=[]), ["no worker", "cluster.worker=[]"]),
        (_cluster(ps="c:1"), ["must be a list", "cluster.ps='c:1'"]),
        (_cluster(ps=7), ["must be a list", "cluster.ps=7"]),
        (_cluster(ps=[7]), ["not an address", "cluster.ps[0]=7"]),
        (_cluster(ps=["c"]), ["not an address", "cluster.ps[0]='c'"]),
        (
            _cluster(worker=["a:1", "a:1"]),
            ["one address", "cluster.worker[0]", "cluster.worker[1]='a:1'"],
        ),
        (
            _cluster(ps=["A:1"]),
            ["one address", "cluster.worker[0]", "cluster.ps[0]='A:1'"],
        ),
        (
            _cluster(worker=["localhost:1"], ps=["127.0.0.1:1"]),
            ["one address", "cluster.ps[0]='127.0.0.1:1'"],
        ),
        (_tf_config(task=None), ["which task", "task=None"]),
        (_tf_config(task={"index": 0}), ["which task", "task={'index': 0}"]),
        (
            _tf_config(task={"type": "wroker", "index": 0}),
            ["unknown", "task.type='wroker'"],
        ),
        (_tf_config(task={"type": []}), ["unknown", "task.type=[]"]),
        (
            _tf_config(task={"type": "worker", "index": 2}),
            ["out of range", "0 to 1", "task.index=2"],
        ),
        (
            _tf_config(task={"type": "chief", "index": 1}),
            ["out of range", "0 to 0", "task.index=1"],
        ),
        (
            _tf_config(task={"type": "evaluator", "index": -1}),
            ["out of range", "task.index=-1"],
        ),
        (
            _tf_config(task={"type": "ps", "index": "one"}),
            ["out of range", "task.index='one'"],
        ),
        (
            _tf_config(task={"type": "ps", "index": True}),
            ["out of range", "task.index=True"],
        ),
    ],
)
def test_errors_name_the_field_and_the_value(
    text: str, parts: list[str]
) -> None:
    with pytest.raises(errors.ClusterConfigurationError) as caught:
        tf_config.parse_tf_config(text)
    for part in parts:
        assert part in str(caught.value)


_ADDRESSES = st.lists(
    st.builds("h{}:{}".format, st.integers(0, 9), st.integers(1, 65535)),
    min_size=2,
    max_size=9,
    unique=True,
)


@given(addresses=_ADDRESSES, cut=st.integers(1, 8), has_chief=st.booleans())
def test_tf_config_survives_the_way_there_and_back(
    addresses: list[str], cut: int, has_chief: bool
) -> None:
    cut = min(cut, len(addresses) - 1)
    cluster = ClusterSpec(
        tuple(addresses[:cut]),
        tuple(addresses[cut:]),
        "chief:1" if has_chief else None,
    )
    for task in cluster.tasks:
        text = tf_config.to_tf_config(
            cluster, task.job, task.index, evaluator=True
        )
        config = tf_config.parse_tf_config(text)
        assert (config.cluster, config.task) == (cluster, task)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["cluster", "task", "type", "index", "worker", "ps"]
                ),
                inner,
            )
        ),
    )
)
def test_nothing_but_our_error_is_raised(config: Any) -> None:
    with contextlib.suppress(errors.ClusterConfigurationError):
        tf_config.parse_tf_config(json.dumps(config))


class _Resolver:
    def __init__(self, jobs: Any, task_type: Any, task_id: Any) -> None:
        self._jobs = jobs
        self.task_type = task_type
        self.task_id = task_id

    def cluster_spec(self) -> Any:
        return self

    def as_dict(self) -> Any:
        return self._jobs


def test_reads_a_cluster_resolver() -> None:
    jobs = {
        "worker": {1: "grpc://b:1", 0: "a:1"},
        "ps": ["c:1"],
        "evaluator": ["e:1"],
    }
    config = tf_config.from_cluster_resolver(_Resolver(jobs, "", None))
    assert (config.job, config.index) == ("chief", 0)
    assert config.cluster == ClusterSpec(("a:1", "b:1"), ("c:1",))
    config = tf_config.from_cluster_resolver(_Resolver(jobs, "ps", 0))
    assert config.task == Task("ps", 0, "c:1")


@pytest.mark.parametrize(
    ("jobs", "task_type", "task_id", "part"),
    [
        ({}, None, None, "cluster_resolver=_Resolver"),
        ({"worker": {1: "a:1"}, "ps": ["c:1"]}, None, None, "cluster.worker={"),
        (_JOBS, "tpu", 0, "cluster_resolver.task_type='tpu'"),
        (_JOBS, "ps", 1, "cluster_resolver.task_id=1"),
    ],
)
def test_refuses_what_a_resolver_describes_badly(
    jobs: Any, task_type: Any, task_id: Any, part: str
) -> None:
    resolver = _Resolver(jobs, task_type, task_id)
    with pytest.raises(errors.ClusterConfigurationError) as caught:
        tf_config.from_cluster_resolver(resolver)
    assert part in str(caught.value)


def test_a_task_that_is_not_there_cannot_be_described() -> None:
    cluster = ClusterSpec.from_dict(_JOBS)
    with pytest.raises(errors.ClusterConfigurationError, match="index=7"):
        tf_config.to_tf_config(cluster, "worker", 7)
