"""Tests that run the blocks of Python of README and docs/, page by page."""

import contextlib
import json
import linecache
import logging
import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.docs_blocks_test import PAGES
from tfps_plugin.docs_blocks_test import Block
from tfps_plugin.docs_blocks_test import blocks
from tfps_plugin.docs_blocks_test import page_name
from tfps_plugin.strategy import parameter_server_strategy

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)


def _programs(page: pathlib.Path) -> list[Block]:
    return [
        block
        for block in blocks(page.read_text())
        if block.language == "python" and not block.mark
    ]


_PAGES = [page for page in PAGES if _programs(page)]


def small_model() -> keras.Model:
    """Returns a compiled model of five ids; its table is in two shards."""
    model = keras.Sequential(
        [
            keras.Input([5], dtype="int32"),
            keras.layers.Embedding(1000, 8),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns endless batches of ids, and whether most are even."""
    ids = tf.data.Dataset.random(seed=context.input_pipeline_id).map(
        lambda s: tf.random.stateless_uniform([5], [s, 0], 0, 1000, tf.int32)
    )
    return ids.map(
        lambda i: (i, tf.reduce_sum(1 - i % 2, keepdims=True) > 2)
    ).batch(32)


def _run(page: pathlib.Path, namespace: dict[str, Any]) -> None:
    programs = _programs(page)
    # AutoGraph and tracebacks read the lines of a program by its file.
    file = f"<{page_name(page)}>"
    lines: list[str] = []
    for block in programs:
        lines += ["\n"] * (block.line - len(lines))
        lines += block.code.splitlines(keepends=True)
    linecache.cache[file] = (len(lines), None, lines, file)
    try:
        for block in programs:
            code = compile("\n" * block.line + block.code, file, "exec")
            exec(code, namespace)
    finally:
        del linecache.cache[file]


@pytest.mark.parametrize("page", _PAGES, ids=page_name)
def test_the_blocks_of_a_page_run_from_top_to_bottom(
    page: pathlib.Path,
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = cluster.cluster_spec.as_dict()
    task = {"type": "chief", "index": 0}
    # So that a strategy without a resolver finds the cluster.
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": addresses, "task": task})
    )
    # A page says how to set them; other tests rely on them.
    for name in ("tfps_plugin", "tfps_plugin.training"):
        caplog.set_level(logging.NOTSET, name)
    namespace: dict[str, Any] = {
        "__name__": "__main__",
        "keras": keras,
        "np": np,
        "tf": tf,
        "tfps": tfps,
        "cluster": cluster,
        "dataset_fn": dataset_fn,
        "small_model": small_model,
    }
    made: list[tfps.ParameterServerStrategy] = []
    hooks = parameter_server_strategy.construction_hooks
    hooks.append(made.append)
    try:
        _run(page, namespace)
    finally:
        hooks.remove(made.append)
        for strategy in made:
            # One that a later strategy has replaced, and nobody has used.
            with contextlib.suppress(tfps.errors.StrategySupersededError):
                tfps.ClusterCoordinator(strategy).close()
