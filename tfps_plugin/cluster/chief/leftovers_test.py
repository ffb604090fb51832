"""Tests of leftovers on a task, with a server of TensorFlow."""

import logging

import pytest
import tensorflow as tf

from tfps_plugin.cluster.chief import leftovers
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.spec import Task


def _areas() -> tuple[list[tf.Operation], list[tf.Tensor]]:
    """Returns operations that fill two containers, and their sizes."""
    stage, sizes = [], []
    for container in (leftovers.CONTAINER, "another"):
        area = {
            "dtypes": [tf.float32],
            "container": container,
            "shared_name": "leftovers",
        }
        stage.append(
            tf.raw_ops.MapStage(
                key=tf.constant(0, tf.int64),
                indices=[0],
                values=[tf.constant(7.0)],
                **area,
            )
        )
        sizes.append(tf.raw_ops.MapSize(**area))
    return stage, sizes


def test_the_container_of_a_task_is_emptied() -> None:
    server = tf.distribute.Server.create_local_server()
    address = server.target.removeprefix("grpc://")
    with tf.Graph().as_default():
        stage, sizes = _areas()
        with tf.compat.v1.Session(server.target) as session:
            session.run(stage)
            assert session.run(sizes) == [1, 1]
            leftovers.free([Task("ps", 0, address)])
            assert session.run(sizes) == [0, 1]


def test_a_task_that_does_not_answer_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        ports.reserved_port() as port,
        caplog.at_level(logging.WARNING, "tfps_plugin.cluster"),
    ):
        leftovers.free([Task("ps", 3, f"127.0.0.1:{port}")])
    assert "ps 3 at 127.0.0.1" in caplog.text
