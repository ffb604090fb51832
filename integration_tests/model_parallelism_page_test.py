"""Tests of the programs on a page of the documentation, as a user runs them."""

import pathlib
import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_PAGE = pathlib.Path(__file__).parent.parent / "docs" / "model_parallelism.md"


def _tasks(layer: keras.layers.Layer) -> set[str]:
    return {
        weight.value.device.removesuffix("/device:CPU:0")
        for weight in layer.weights
    }


def test_the_models_of_the_page_are_cut_as_it_says(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    random = np.random.default_rng(0)
    program: dict[str, Any] = {
        "keras": keras,
        "tf": tf,
        "tfps": tfps,
        "strategy": strategy,
        "sentences": random.integers(0, 50_000, (64, 20)),
        "classes": random.integers(0, 10_000, 64),
        "features": random.normal(size=(128, 8)),
        "targets": random.normal(size=128),
    }
    one, two = "/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"
    table, layer, over_ps, over_workers = re.findall(
        r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL
    )
    exec(table, program)
    assert _tasks(program["table"]) == {two}
    exec(layer, program)
    exec(over_ps, program)
    model = program["model"]
    assert _tasks(model.layers[1]) == {one}
    assert _tasks(model.layers[-1]) == {two}
    explanation = strategy.explain(model, print_fn=None)
    held = {each.name: each.task for each in explanation.held}
    (words,) = (held[name] for name in held if name.endswith("embeddings"))
    assert words == one
    # Neither the 2.6 MB of the output layer nor any logits.
    for body in explanation.bodies:
        assert sum(sent.num_bytes for sent in body.sent) < 100_000
        assert dict(body.operations)[two] > 0
    exec(over_workers, program)
    (body, *_) = strategy.explain(program["model"], print_fn=None).bodies
    workers = ["/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"]
    assert all(dict(body.operations)[worker] > 10 for worker in workers)
    between = [
        sent
        for sent in body.sent
        if {sent.source, sent.destination} == set(workers)
    ]
    assert [sent.num_parcels for sent in between] == [1, 1]
    tfps.ClusterCoordinator(strategy).close()
