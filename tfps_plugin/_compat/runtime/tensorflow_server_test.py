"""Tests that only Python code of TensorFlow is left out."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tfps_plugin._compat.runtime import tensorflow_server

pytestmark = pytest.mark.compat

# Runs in a separate process: a process imports TensorFlow only once.
_PROGRAM = """
import json, sys
from tfps_plugin._compat.runtime import tensorflow_server
with tensorflow_server.empty_tensorflow():
    from tensorflow.core.framework import kernel_def_pb2, op_def_pb2
    from tensorflow.python.client import pywrap_tf_session as native

def registered():
    kernels, operations = kernel_def_pb2.KernelList(), op_def_pb2.OpList()
    for all_of, get in (
        (operations, native.TF_GetAllOpList),
        (kernels, native.TF_GetAllRegisteredKernels),
    ):
        all_of.ParseFromString(native.TF_GetBuffer(get()))
    return {operation.name for operation in operations.op} | {
        kernel.SerializeToString(deterministic=True).hex()
        for kernel in kernels.kernel
    }

before, has_keras = registered(), "keras" in sys.modules
import tensorflow as tf
added = registered() - before
public = {
    "Server": tf.distribute.Server,
    "Session": tf.compat.v1.Session,
    "ConfigProto": tf.compat.v1.ConfigProto,
    "OpError": tf.errors.OpError,
    "Graph": tf.Graph,
    "ClusterSpec": tf.train.ClusterSpec,
    "device": tf.device,
}
# All of it works, with the behavior of TensorFlow 2.
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
print(json.dumps({
    "registered": len(before),
    "added": sorted(added),
    "has_keras": has_keras,
    "other": [
        name for name, it in public.items()
        if getattr(tensorflow_server, name) is not it
    ],
    "is_eager": tf.executing_eagerly(),
    "shape": model(tf.ones((2, 3))).shape.as_list(),
}))
"""


def test_every_operation_is_there_and_the_rest_may_follow() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environ,
        stdout=subprocess.PIPE,
        check=True,
        timeout=50,
    )
    found = json.loads(result.stdout)
    assert found.pop("registered") > 10_000
    assert found == {
        "added": [],
        "has_keras": False,
        "other": [],
        "is_eager": True,
        "shape": [2, 1],
    }


def test_plugins_need_all_of_tensorflow(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in tensorflow_server._EXTENDING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not tensorflow_server._is_extended(tmp_path)
    monkeypatch.setenv("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "x.so")
    assert tensorflow_server._is_extended(tmp_path)
    monkeypatch.undo()
    (tmp_path / "tensorflow-plugins").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert tensorflow_server._is_extended(tmp_path)


def test_kernels_of_a_build_need_all_of_tensorflow(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "core" / "kernels").mkdir(parents=True)
    assert not tensorflow_server._is_extended(tmp_path)
    (tmp_path / "core" / "kernels" / "mine.so").touch()
    assert tensorflow_server._is_extended(tmp_path)
