"""Tests of leftovers on a task, with a server of TensorFlow."""

import logging

import pytest
import tensorflow as tf

from tfps_plugin.cluster.chief import leftovers
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.spec import Task


def _areas() -> tuple[list[tf.Operation], list[tf.Tensor]]:
    """Returns operations that make variables in two containers.

    Also returns whether each is there.
    """
    made, are_there = [], []
    for container in (leftovers.CONTAINER, "another"):
        area = tf.raw_ops.VarHandleOp(
            dtype=tf.float32,
            shape=[],
            container=container,
            shared_name="leftovers",
        )
        made.append(tf.raw_ops.AssignVariableOp(resource=area, value=7.0))
        are_there.append(tf.raw_ops.VarIsInitializedOp(resource=area))
    return made, are_there


def test_the_container_of_a_task_is_emptied() -> None:
    server = tf.distribute.Server.create_local_server()
    address = server.target.removeprefix("grpc://")
    with tf.Graph().as_default():
        made, are_there = _areas()
        with tf.compat.v1.Session(server.target) as session:
            session.run(made)
            assert session.run(are_there) == [True, True]
            leftovers.free([Task("ps", 0, address)])
            assert session.run(are_there) == [False, True]


def test_a_task_that_does_not_answer_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        ports.reserved_port() as port,
        caplog.at_level(logging.WARNING, "tfps_plugin.cluster"),
    ):
        leftovers.free([Task("ps", 3, f"127.0.0.1:{port}")])
    assert "ps 3 at 127.0.0.1" in caplog.text
