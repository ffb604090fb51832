"""Measures what a step costs a parameter server with many members.

    python -m integration_tests.benchmarks.sync_scale [--members 10 100 1000]

The members are simulated on the ps itself: in turns, each takes a token, and
sends a small gradient. So the ps does all that it does in synchronous
training but for the network, and the work of the members besides. Without
backup workers it takes the gradients of all; with a tenth of them as backup
workers, the referee decides whose count. Prints the milliseconds and the CPU
milliseconds of a step (median and range of the rounds), and what memory of the
ps the queues, the functions and the steps take.
"""

import argparse
import pathlib
import statistics
import threading
import time
from typing import Any

import keras
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.training.synchronous import together
from tfps_plugin.training.synchronous.global_step import GlobalStep

from .processes import cpu_seconds

_WIDTH = 64
_CALL_SECONDS = 30.0


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--members", type=int, nargs="+", default=[10, 100, 1000]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    print(
        f"{'members':>8}{'backup':>8}{'ms a step':>11}{'range':>18}"
        f"{'CPU ms':>8}{'MiB':>6}"
    )
    for num_members in options.members:
        for num_backup in (0, num_members // 10):
            _measure(num_members, num_backup, options.rounds, options.steps)


def _measure(
    num_members: int, num_backup: int, num_rounds: int, num_steps: int
) -> None:
    with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver, consistency=tfps.Sync()
        )
        pid = cluster.process("ps", 0).pid
        with (
            strategy.scope(),
            strategy.extended.chief_runs.traced_for_workers(),
        ):
            crowd = _Crowd(strategy, num_members, num_backup)
        before = _resident_mib(pid)
        crowd.make(num_steps)
        seconds, costs = [], []
        for _ in range(num_rounds):
            cpu, begun = cpu_seconds([pid]), time.perf_counter()
            crowd.make(num_steps)
            seconds.append((time.perf_counter() - begun) / num_steps)
            costs.append((cpu_seconds([pid]) - cpu) / num_steps)
        memory = _resident_mib(pid) - before
        tfps.ClusterCoordinator(strategy).close()
    spread = f"{1000 * min(seconds):.2f} to {1000 * max(seconds):.2f}"
    median, cost = (1000 * statistics.median(each) for each in (seconds, costs))
    print(
        f"{num_members:8}{num_backup:8}{median:11.2f}{spread:>18}{cost:8.2f}"
        f"{memory:6.0f}",
        flush=True,
    )


class _Crowd:
    """Members of synchronous steps, on the parameter server."""

    def __init__(
        self, strategy: Any, num_members: int, num_backup: int
    ) -> None:
        (device,) = strategy.ps_devices
        self._step = GlobalStep([device], num_members, num_backup)
        self._num_members = num_members
        weight = keras.Variable(tf.zeros([_WIDTH]))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])

        def train(batch: tf.Tensor) -> None:
            gradient = tf.fill([_WIDTH], tf.reduce_mean(batch))
            optimizer.apply([gradient], [weight])

        # The parts of a parcel follow from the trace of a step.
        tf.function(
            lambda data: self._step.traced(train, data), autograph=False
        ).get_concrete_function(tf.TensorSpec([8], tf.float32))
        made = together.make_together(strategy, self._step)
        (self._applier,) = made.appliers
        self._referee = made.referee
        with compat.clear_device(), tf.device(device):
            members = tf.function(
                self._members, autograph=False
            ).get_concrete_function(tf.TensorSpec([], tf.int64))
        self._device = device
        self._members_of = strategy.fused(members)

    def make(self, num_steps: int) -> None:
        """Makes steps, with a call of the applier, and one of the referee."""
        arguments = (
            tf.constant(0, tf.int64),
            tf.constant(num_steps, tf.int64),
            tf.ones([self._num_members], tf.bool),
        )
        errors: list[BaseException] = []

        def call(function: Any, *call_arguments: Any) -> None:
            try:
                # Calls of one executor would follow one another.
                with (
                    tensorflow_execution.own_executor(),
                    tf.device(self._device),
                ):
                    function(*call_arguments)
            except BaseException as error:
                errors.append(error)

        calls = [
            (self._applier.function, *arguments, []),
            (self._members_of, arguments[1]),
        ]
        if self._referee is not None:
            calls.append((self._referee, *arguments))
        threads = [
            threading.Thread(target=call, args=each, daemon=True)
            for each in calls
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_CALL_SECONDS)
            if thread.is_alive():
                raise TimeoutError("The steps have not ended.")
        if errors:
            raise errors[0]
        self._applier.empty()

    def _members(self, last: tf.Tensor) -> tf.Tensor:
        """Makes the steps of all members, who take turns."""
        step = self._step
        ((tokens,), (mailboxes,)) = step.tokens, step.mailboxes
        nothing = [
            tf.zeros([s or 0 for s in part.spec.shape], part.spec.dtype)
            for part in step.layouts[0].parts
        ]

        def make(worker: tf.Tensor) -> tf.Tensor:
            (stamp,) = tokens.take(worker)
            stamp = tf.ensure_shape(stamp, [])

            def send() -> tf.Tensor:
                sent = mailboxes.put(worker, [stamp, 8.0, *nothing])
                if step.referee is not None:
                    # As a member does, once its parcel is there.
                    arrived = step.referee.arrive(worker, stamp)
                    compat.run_after(arrived, [sent])
                    sent = arrived
                with tf.control_dependencies([sent]):
                    return tf.identity(stamp)

            return tf.cond(stamp < last, send, lambda: tf.identity(stamp))

        def turn(worker: tf.Tensor, stamps: tf.Tensor) -> list[tf.Tensor]:
            made = tf.cond(
                # It has no other step to make, and would get no token.
                stamps[worker] < last - 1,
                lambda: make(worker),
                lambda: stamps[worker],
            )
            return [
                worker + 1,
                tf.tensor_scatter_nd_update(stamps, [[worker]], [made]),
            ]

        def turns(number: tf.Tensor, stamps: tf.Tensor) -> list[tf.Tensor]:
            _, stamps = tf.while_loop(
                lambda worker, _: worker < self._num_members,
                turn,
                [tf.constant(0), stamps],
                parallel_iterations=1,
            )
            return [number + 1, stamps]

        _, stamps = tf.while_loop(
            lambda number, _: number < last,
            turns,
            [tf.constant(0, tf.int64), tf.fill([self._num_members], -last)],
            parallel_iterations=1,
        )
        return tf.reduce_min(stamps)


def _resident_mib(pid: int) -> float:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"Process {pid} has no memory.")


if __name__ == "__main__":
    main()
