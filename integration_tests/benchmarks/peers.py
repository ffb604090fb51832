"""Peers that run the same program: TensorFlow's own, with Keras 2."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.machine import tuning
from tfps_plugin.cluster.spec import ClusterSpec

from .workloads import Workload

_TASKS = (("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1))
# Servers start as in TensorFlow's tutorial for machines with few cores. They
# are tuned in the same way as our own tasks, if the environment says so.
_SERVER = """
import contextlib, json, os, sys
import tensorflow as tf
from tfps_plugin.cluster.machine import tuning
jobs, job, index, *cores = sys.argv[1:]
config = tf.compat.v1.ConfigProto()
config.inter_op_parallelism_threads = 4
with (
    tuning.applied(job, [int(core) for core in cores[1:]], os.environ)
    if tuning.is_on(os.environ)
    else contextlib.nullcontext()
):
    tf.distribute.Server(
        json.loads(jobs), job_name=job, task_index=int(index),
        config=config, protocol="grpc",
    )
sys.stdin.read()
"""


@contextlib.contextmanager
def tensorflow_strategy(
    workload: Workload, steps_per_call: int | None
) -> Iterator[Any]:
    """Yields a model on TensorFlow's strategy, with two workers and two ps."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    with _servers() as found:
        import tensorflow as tf
        import tf_keras

        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(found), rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(
            resolver,
            tf.distribute.experimental.partitioners.MinSizePartitioner(
                workload.min_shard_bytes, max_shards=2
            ),
        )
        with strategy.scope():
            model = workload.model(tf_keras, steps_per_call)
        yield (
            model,
            tf_keras.utils.experimental.DatasetCreator(workload.dataset),
        )


@contextlib.contextmanager
def tf_keras_alone(
    workload: Workload, steps_per_call: int | None
) -> Iterator[Any]:
    """Yields a Keras 2 model in one process."""
    import tf_keras

    yield workload.model(tf_keras, steps_per_call), workload.dataset()


@contextlib.contextmanager
def _servers() -> Iterator[dict[str, list[str]]]:
    """Starts a server for each task; ends them at the end."""
    tune = tuning.is_on(os.environ)
    jobs: dict[str, list[str]] = {}
    with contextlib.ExitStack() as stack:
        for job, _ in _TASKS:
            port = stack.enter_context(ports.reserved_port())
            jobs.setdefault(job, []).append(f"{ports.LOOPBACK}:{port}")
        cluster = ClusterSpec.from_dict(jobs)
        for job, index in _TASKS:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _SERVER, json.dumps(jobs)),
                    *(job, str(index)),
                    *tuning.task_arguments(
                        cluster, cluster.task(job, index), tune=tune
                    ),
                ],
                env={
                    **os.environ,
                    **tuning.task_variables(os.environ, tune=tune),
                    "TF_GRPC_REUSE_PORT": "1",
                },
                # The server ends with this process, however it ends.
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield jobs
