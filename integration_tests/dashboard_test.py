"""Tests of the live page, in a real browser."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_DEADLINE_SECONDS = 60.0
_MILLISECONDS = 1000.0
_WIDTHS = {"wide": 1280, "narrow": 390}

pytestmark = pytest.mark.skipif(
    _CHROMIUM is None, reason="no Chromium is installed (apt install chromium)"
)


@pytest.fixture
def cluster() -> Iterator[tfps.LocalCluster]:
    """Yields a cluster of its own, of which a task dies."""
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


@pytest.fixture
def training(cluster: tfps.LocalCluster) -> Iterator[keras.Model]:
    """Yields a model that trains, until the test ends."""
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.MinSizePartitioner(1024, max_shards=2),
    )
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([4], dtype="int32"),
                keras.layers.Embedding(1000, 8, name="items"),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ],
            # A name that is no HTML when it is shown.
            name="ranking",
        )
        model.compile("adam", "mse")
    ids = np.arange(128).reshape(32, 4)
    is_over = threading.Event()

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = is_over.is_set()

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        del context
        labels = np.ones([32, 1], "f")
        return tf.data.Dataset.from_tensors((ids, labels)).repeat()

    def train() -> None:
        model.fit(
            tfps.DatasetCreator(batches),
            steps_per_epoch=50,
            epochs=100_000,
            verbose=0,
            callbacks=[Stop()],
        )

    thread = threading.Thread(target=train)
    thread.start()
    yield model
    is_over.set()
    thread.join(_DEADLINE_SECONDS)
    assert not thread.is_alive()
    tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def address(training: keras.Model) -> Iterator[str]:
    """Yields the address of the page, which another process serves."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tfps_plugin", "dashboard"),
            *("--port", "0", "--job", str(os.getpid())),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line + process.stdout.read()
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=_DEADLINE_SECONDS)


def test_the_page_shows_a_job_and_a_loss(
    cluster: tfps.LocalCluster,
    training: keras.Model,
    address: str,
    tmp_path: pathlib.Path,
) -> None:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright (pip install playwright)"
    )
    asked, messages = set(), []
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(
            executable_path=_CHROMIUM,
            # A container has no sandbox to give.
            args=["--no-sandbox"],
        )
        pages = {}
        for name, width in _WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.set_default_timeout(_MILLISECONDS * _DEADLINE_SECONDS)
            page.on("request", lambda request: asked.add(request.url))
            page.on("console", lambda message: messages.append(message.text))
            page.on("pageerror", lambda error: messages.append(str(error)))
            page.goto(address)
            pages[name] = page
        for page in pages.values():
            for task in ("worker 0", "worker 1", "ps 0", "ps 1", "chief 0"):
                page.wait_for_selector(
                    f'[data-task="{task}"][data-health="healthy"]'
                )
            page.wait_for_function(
                "/^[0-9.,]+$/.test("
                "document.getElementById('steps-per-second').textContent)"
            )
            assert page.inner_text("#healthy") == "5 of 5"
            assert "fit of ranking" in page.inner_text("#work")
            assert page.inner_text("#connection") == "live"
            assert "items/embeddings" in page.inner_text("#servers")
            assert page.locator("canvas").count() == 4
        cluster.kill("worker", 1)
        for name, page in pages.items():
            page.wait_for_selector('[data-task="worker 1"][data-health="lost"]')
            page.wait_for_selector('#events [data-kind="WorkerLost"]')
            page.wait_for_selector("#timeline i.WARNING")
            assert page.inner_text("#healthy") == "4 of 5"
            # Nothing is wider than the window.
            needed = page.evaluate("document.documentElement.scrollWidth")
            assert needed <= _WIDTHS[name]
            page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        cluster.start("worker", 1)
        pages["wide"].wait_for_selector(
            '[data-task="worker 1"][data-health="healthy"]'
        )
        browser.close()
    assert not messages
    # Nothing is loaded from elsewhere.
    assert all(url.startswith((address, "data:")) for url in asked), asked


def test_other_names_of_this_machine_get_nothing(address: str) -> None:
    import http.client

    connection = http.client.HTTPConnection(
        address.removeprefix("http://").rstrip("/")
    )
    connection.request("GET", "/", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 400
    connection.close()
