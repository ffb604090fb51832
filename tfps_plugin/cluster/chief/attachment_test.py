"""Tests of earlier state of a chief's process, and of the chief's port."""

import socket
import subprocess
import sys

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.chief import attachment
from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.spec import ClusterSpec

_CLUSTER = ClusterSpec(("a:1",), ("b:1",))

# A process becomes a chief once, so each test case takes its own process. The
# cluster has no tasks, so no other process is needed.
_PROGRAM = """
import sys
import keras
import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.chief import attachment
from tfps_plugin.cluster.machine import ports


class Cluster:
    serving_tasks = ()

    def __init__(self, address):
        self.chief_address = address

    def with_chief(self, address):
        return Cluster(address)


def connect():
    with ports.reserved_port() as port:
        cluster = Cluster(f"127.0.0.1:{port}")
    attachment.attach(
        cluster, cluster.serving_tasks, attachment.earlier_state(cluster)
    )
    assert attachment.earlier_state(cluster) is None


x = np.ones((16, 3), "float32")
y = np.zeros((16, 1), "float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, verbose=0)
variable = tf.Variable([1.0, 2.0])
text = tf.Variable("text")
offset = tf.constant([1.0, 1.0])
double = tf.function(lambda factor: factor * variable + offset)
double(2.0)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
with_variable = dataset.map(lambda a, b: (a + variable[0], b))
iterator = iter(dataset)
keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
table = tf.lookup.StaticHashTable(keys, 0)
look_up = tf.function(lambda key: table.lookup(key))
look_up(tf.constant("a"))
random = tf.random.Generator.from_seed(1)

# The second time, devices have the names that they had before.
for num_connections in (1, 2):
    weights = model.get_weights()
    moments = [np.array(each) for each in model.optimizer.variables]
    loss = model.evaluate(x, y, verbose=0)
    variable.assign([1.0, 2.0])
    connect()
    for now, before in zip(model.get_weights(), weights):
        np.testing.assert_array_equal(now, before)
    for now, before in zip(model.optimizer.variables, moments):
        np.testing.assert_array_equal(np.array(now), before)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), loss)
    model.fit(x, y, verbose=0)
    assert int(model.optimizer.iterations) == 1 + num_connections
    assert np.any(model.get_weights()[0] != weights[0])
    assert model.predict(x, verbose=0).shape == (16, 1)
    assert double(2.0).numpy().tolist() == [3.0, 5.0]
    variable.assign([3.0, 4.0])
    variable.assign_add([1.0, 1.0])
    assert variable.numpy().tolist() == [4.0, 5.0]
    assert double(2.0).numpy().tolist() == [9.0, 11.0]
    with tf.GradientTape() as tape:
        result = double(2.0)
    assert tape.gradient(result, variable).numpy().tolist() == [2.0, 2.0]
    assert text.numpy() == b"text"
    assert len(list(dataset)) == len(list(dataset.map(lambda a, b: a))) == 2
    assert look_up(tf.constant("b")).numpy() == 2
    assert table.lookup(tf.constant("a")).numpy() == 1
    assert random.normal(()).shape == ()
    for lost in (lambda: next(iter(with_variable)), lambda: next(iterator)):
        try:
            lost()
        except errors.UnsupportedError as error:
            assert "after the strategy" in str(error)
        else:
            sys.exit("what cannot be carried over is no error")
print("all is well")
"""


def test_what_was_made_before_goes_on_working() -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert "all is well" in result.stdout, result.stderr[-4000:]
    assert "Received: a dataset of (TensorSpec" in result.stderr
    assert "; an iterator over (TensorSpec" in result.stderr


def test_a_port_that_is_taken_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ports.REUSE_VARIABLE, raising=False)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = _CLUSTER.with_chief(f"c:{port}")
        with pytest.raises(errors.TaskStartError) as caught:
            attachment.check_own_port(cluster)
        assert f"cluster.chief[0]='c:{port}'" in str(caught.value)
        assert f"sport = :{port}" in str(caught.value)
        # This process's own server has the port.
        monkeypatch.setattr(this_process.state, "own_port", port)
        attachment.check_own_port(cluster)


def test_a_chief_without_a_prescribed_address_finds_a_port() -> None:
    attachment.check_own_port(_CLUSTER)
