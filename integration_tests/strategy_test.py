"""Tests of the strategy's tf.distribute interface, on a real cluster."""

import concurrent.futures
import gc
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.chief import free_workers
from tfps_plugin.cluster.machine import ports
from tfps_plugin.variables.updates import update_lock

_ROUNDS = 200
_THREADS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=1, num_ps=3) as cluster:
        yield cluster


def _strategy(
    cluster: tfps.LocalCluster, partitioner: Any = None
) -> tfps.ParameterServerStrategy:
    return tfps.ParameterServerStrategy(cluster.cluster_resolver, partitioner)


def _task_of(variable: Any) -> str:
    return variable.device.split("/task:")[1].split("/")[0]


def test_it_is_a_strategy(cluster: tfps.LocalCluster) -> None:
    strategy = _strategy(cluster)
    assert isinstance(strategy, tf.distribute.Strategy)
    assert strategy.num_replicas_in_sync == 1
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.in_cross_replica_context()
    assert strategy.cluster_resolver is not None


def test_a_ps_that_has_no_room_is_named_with_what_it_holds(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = _strategy(cluster)
    with strategy.scope():
        held = [tf.Variable(tf.zeros([1000]), name=f"v{i}") for i in range(3)]
        with pytest.raises(tf.errors.ResourceExhaustedError) as raised:
            # This is larger than the address space.
            tf.Variable(lambda: tf.zeros([2**46]), name="huge")
        (note,) = raised.value.__notes__
        assert "no room for the variable 'huge' on parameter server" in note
        assert any(
            f"server {_task_of(v)}. With it, it would hold 256.0 TiB" in note
            and f"{v.name.removesuffix(':0')} (3.9 KiB)" in note
            for v in held
        )
        # The cluster is still usable.
        assert tf.Variable(1.0).numpy() == 1.0


def test_run_and_reduce(cluster: tfps.LocalCluster) -> None:
    strategy = _strategy(cluster)

    def replica_fn(x: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        assert context.replica_id_in_sync_group is not None
        return 2.0 * context.all_reduce(tf.distribute.ReduceOp.SUM, x)

    with pytest.warns(UserWarning, match="workers wait"):
        value = strategy.run(replica_fn, args=(tf.constant([1.0, 3.0]),))
    # It warns once, and not of Keras's own steps on the chief.
    strategy.run(replica_fn, args=(tf.constant([1.0, 3.0]),))
    assert value.numpy().tolist() == [2.0, 6.0]
    assert strategy.experimental_local_results(value) == (value,)
    assert strategy.gather(value, axis=0).numpy().tolist() == [2.0, 6.0]
    for axis, operation, expected in (
        (None, "SUM", [2.0, 6.0]),
        (0, "SUM", 8.0),
        (0, "MEAN", 4.0),
    ):
        reduced = strategy.reduce(operation, value, axis=axis)
        assert reduced.numpy().tolist() == expected


def test_datasets_pass_through_until_they_are_per_worker(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = _strategy(cluster)
    dataset = tf.data.Dataset.range(3)
    assert list(strategy.experimental_distribute_dataset(dataset)) == [0, 1, 2]
    made = strategy.distribute_datasets_from_function(
        lambda context: dataset.map(lambda x: x + context.num_input_pipelines)
    )
    assert list(made.as_numpy_iterator()) == [1, 2, 3]


def test_all_threads_of_a_worker_take_in_one_value_at_once(
    cluster: tfps.LocalCluster,
) -> None:
    with _strategy(cluster).scope():
        counter = keras.optimizers.SGD().iterations.value
    copies = counter._copies
    begin = threading.Barrier(_THREADS, timeout=60)
    values: list[Any] = []

    def take_in() -> int:
        executor = tensorflow_execution.new_synchronous_executor()
        with tensorflow_execution.executor_scope(executor):
            copy = copies._new_copy("/job:worker/task:0/device:CPU:0").variable
            for number in range(_ROUNDS):
                if begin.wait() == 0:
                    counter.assign(number)
                    values.append(copies._value_since(math.inf, 0.0))
                begin.wait()
                copies._refresh(copy, values[number])
            return int(copy.numpy())

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        taken = [pool.submit(take_in) for _ in range(_THREADS)]
        assert [each.result() for each in taken] == [_ROUNDS - 1] * _THREADS


def test_it_knows_its_variables(cluster: tfps.LocalCluster) -> None:
    strategy = _strategy(cluster, tfps.partitioners.FixedShardsPartitioner(2))
    outside = tf.Variable(1.0)
    with strategy.scope():
        whole = tf.Variable(1.0)
        sharded = tf.Variable(tf.ones([4, 2]))
        metric = keras.metrics.Mean()
    extended = strategy.extended
    assert not extended.variable_created_in_scope(outside)
    for variable in (whole, sharded, sharded.variables[0], metric.total.value):
        assert extended.variable_created_in_scope(variable)
    assert not _strategy(cluster).extended.variable_created_in_scope(whole)
    assert extended.value_container(sharded.variables[1]) is sharded


def test_variables_are_placed_by_bytes(cluster: tfps.LocalCluster) -> None:
    strategy = _strategy(cluster)
    with strategy.scope():
        large = tf.Variable(tf.zeros([1000, 10]))
        small = [tf.Variable(tf.zeros([100])) for _ in range(8)]
    tasks = [_task_of(v) for v in small]
    assert _task_of(large) not in tasks
    assert sorted(tasks.count(task) for task in set(tasks)) == [4, 4]
    assert sorted(strategy.bytes_per_ps) == [1600, 1600, 40_000]


def test_any_callable_is_a_partitioner(cluster: tfps.LocalCluster) -> None:
    asked = []

    def partitioner(shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        asked.append((tuple(shape), dtype))
        return [3, 1] if len(shape) == 2 else [1] * len(shape)

    strategy = _strategy(cluster, partitioner)
    with strategy.scope():
        table = tf.Variable(lambda: tf.reshape(tf.range(20), [10, 2]))
        vector = tf.Variable(tf.zeros([5]))
    assert asked == [((10, 2), tf.int32), ((5,), tf.float32)]
    assert isinstance(table, tfps.ShardedVariable)
    assert [v.shape[0] for v in table.variables] == [4, 3, 3]
    assert sorted(map(_task_of, table.variables)) == ["0", "1", "2"]
    np.testing.assert_array_equal(table.numpy().ravel(), np.arange(20))
    assert not isinstance(vector, tfps.ShardedVariable)


def test_shards_along_another_axis_are_refused(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = _strategy(cluster, lambda shape, dtype, axis=0: [1, 2])
    with (
        strategy.scope(),
        pytest.raises(errors.PartitioningError, match="first axis"),
    ):
        tf.Variable(tf.zeros([4, 4]), name="square")
    with pytest.raises(errors.PartitioningError, match="callable"):
        _strategy(cluster, partitioner=3)


def test_slots_are_beside_their_variables(cluster: tfps.LocalCluster) -> None:
    strategy = _strategy(cluster, tfps.partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        table = tf.Variable(tf.zeros([6, 2]))
        for _ in range(3):
            tf.Variable(0.0)
        with strategy.extended.colocate_vars_with(table):
            slot = tf.Variable(tf.ones([6, 2]))
            scalar = tf.Variable(0.0)
    assert list(map(_task_of, slot.variables)) == list(
        map(_task_of, table.variables)
    )
    assert table.family == [slot]
    assert _task_of(scalar) == _task_of(table)


def test_updates_run_where_the_variable_is(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = _strategy(cluster)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([2]))
    devices = []

    def update(v: Any, delta: Any) -> Any:
        made = tf.ones([2])
        devices.append(made.device)
        return v.assign_add(delta + made)

    with strategy.scope():
        strategy.extended.update(variable, update, args=(tf.ones([2]),))
    assert devices == [variable.device]
    assert variable.numpy().tolist() == [2.0, 2.0]


def test_variables_made_inside_a_function(cluster: tfps.LocalCluster) -> None:
    strategy = _strategy(cluster)
    made: list[Any] = []

    @tf.function
    def make_once(value: tf.Tensor) -> tf.Tensor:
        if not made:
            made.append(tf.Variable(lambda: tf.constant(3.0)))
        return made[0] * value

    with strategy.scope():
        assert make_once(tf.constant(2.0)).numpy() == 6.0
    assert "/job:ps/" in made[0].device

    @tf.function
    def from_a_tensor(value: tf.Tensor) -> None:
        tf.Variable(value)

    with (
        strategy.scope(),
        pytest.raises(errors.VariableCreationError, match="callable"),
    ):
        from_a_tensor(tf.constant(2.0))


def test_constraints_are_refused(cluster: tfps.LocalCluster) -> None:
    with (
        _strategy(cluster).scope(),
        pytest.raises(errors.VariableCreationError, match="not safe"),
    ):
        tf.Variable(1.0, constraint=lambda x: x)


def test_keywords_of_the_last_release_still_work(
    cluster: tfps.LocalCluster,
) -> None:
    with pytest.warns(FutureWarning, match=r"RecoveryOptions\(.*\)") as caught:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            recovery="consistent",  # type: ignore[arg-type]
            ps_recovery_timeout_seconds=9.0,
        )
    assert {each.filename for each in caught} == {__file__}
    assert len(caught) == 2
    assert strategy.recovery == tfps.RecoveryOptions(
        restore="consistent", timeout_seconds=9.0
    )
    with pytest.warns(FutureWarning, match=r"recovery\.timeout_seconds"):
        assert strategy.ps_recovery_timeout_seconds == 9.0


def test_fusion_is_what_may_be_changed_later(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = _strategy(cluster)
    strategy.communication = tfps.CommunicationOptions(fusion=False)
    assert not strategy.communication.fusion
    with pytest.raises(ValueError, match="Expected wire_dtype=None"):
        strategy.communication = tfps.CommunicationOptions(wire_dtype="int8")


@pytest.mark.parametrize("job", ["worker", "ps", "evaluator"])
def test_only_the_chief_makes_one(cluster: tfps.LocalCluster, job: str) -> None:
    spec = cluster.cluster_spec.as_dict()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type=job, task_id=0
    )
    with pytest.raises(errors.ClusterConfigurationError, match=f"'{job}'"):
        tfps.ParameterServerStrategy(resolver)


@tf.function
def _sums(variables: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    for variable in variables:
        variable.assign_add(x * variable)
    return tf.add_n([tf.reduce_sum(variable) for variable in variables])


@pytest.mark.parametrize("together", [True, False])
def test_what_a_scheduled_function_sends(
    cluster: tfps.LocalCluster, together: bool
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        communication=tfps.CommunicationOptions(fusion=together),
    )
    with strategy.scope():
        variables = [tf.Variable(tf.ones([4]) * i) for i in range(9)]
    said: list[str] = []
    args = (variables, tf.constant(0.5))
    explanation = strategy.explain(_sums, args, print_fn=said.append)
    assert said == [str(explanation)]
    (body,) = explanation.bodies
    assert {sent.source for sent in body.sent} >= {
        "",
        *(f"/job:ps/replica:0/task:{index}" for index in range(3)),
    }
    assert body.num_parcels < body.num_crossings

    coordinator = tfps.ClusterCoordinator(strategy)
    total = coordinator.schedule(_sums, args).fetch()
    assert total == sum(4 * 1.5 * i for i in range(9))
    coordinator.close()


def test_only_what_runs_here_is_explained(cluster: tfps.LocalCluster) -> None:
    strategy = _strategy(cluster)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for step in (model, lambda: None, 3):
        with pytest.raises(ValueError, match="Run a few steps of the model"):
            strategy.explain(step)


def test_updates_of_variables_with_several_locks_do_not_hold_each_other_up(
    cluster: tfps.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if all variables were large, and so many that they share locks.
    monkeypatch.setattr(update_lock, "_LARGE_BYTES", 0)
    monkeypatch.setattr(update_lock, "_STRIPES", 2)
    strategy = _strategy(cluster, tfps.partitioners.FixedShardsPartitioner(3))
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(60, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(24),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.Adam(0.01)
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
    locks = []
    for variable, *slots in zip(
        model.trainable_variables,
        optimizer._momentums,
        optimizer._velocities,
        strict=True,
    ):
        own = _locks_of(variable)
        assert [_locks_of(slot) for slot in slots] == [own, own]
        locks += own
    assert len(set(map(id, locks))) == 6
    # Two lanes update all variables at the same time.
    x = np.random.default_rng(1).integers(0, 60, (_ROUNDS * 4, 3))
    model.fit(x, x[:, :1] / 60.0, batch_size=4, verbose=0)
    assert int(optimizer.iterations) == _ROUNDS
    explanation = strategy.explain(model, print_fn=None)
    assert not [
        sent
        for body in explanation.bodies
        for sent in body.sent
        if sent.source and sent.destination
    ]
    tfps.ClusterCoordinator(strategy).close()


def _locks_of(variable: Any) -> list[Any]:
    value = variable.value
    return [part.update_lock for part in getattr(value, "variables", [value])]


@pytest.mark.parametrize("replicate", [None, "ps"])
def test_a_strategy_that_nothing_refers_to_leaves_no_thread(
    cluster: tfps.LocalCluster, replicate: Any
) -> None:
    def run() -> None:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            recovery=tfps.RecoveryOptions(
                replicate=replicate, replicate_every_steps=1
            ),
        )
        with strategy.scope():
            variable = tf.Variable(1.0)
        coordinator = tfps.ClusterCoordinator(strategy)
        add = tf.function(lambda: [variable.assign_add(1.0).read_value()])
        coordinator.schedule(add)
        coordinator.join()
        assert float(variable) == 2.0

    before = set(threading.enumerate())
    for _ in range(2):
        run()
        gc.collect()
    deadline = time.monotonic() + 60.0
    for thread in set(threading.enumerate()) - before:
        while thread.name.startswith("tfps-") and thread.is_alive():
            assert time.monotonic() < deadline, thread.name
            # A copy that was under way referred to its strategy until now.
            gc.collect()
            thread.join(0.1)


def test_strategies_of_one_cluster_work_at_once(
    cluster: tfps.LocalCluster,
) -> None:
    # Both have copies of it on the same worker.
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [1.0]), 0.0
    )
    counts, coordinators, steps = [], [], []

    def step_of(count: tf.Variable) -> Any:
        return tf.function(
            lambda: [
                count.assign_add(table.lookup(tf.constant("a"))).read_value()
            ]
        )

    for _ in range(2):
        strategy = _strategy(cluster)
        with strategy.scope():
            counts.append(tf.Variable(0.0))
        coordinators.append(tfps.ClusterCoordinator(strategy))
        steps.append(step_of(counts[-1]))
    for _ in range(10):
        for coordinator, step in zip(coordinators, steps, strict=True):
            coordinator.schedule(step)
    for coordinator in coordinators:
        coordinator.join()
    assert [float(count) for count in counts] == [10.0, 10.0]
    # The end of one does not end the other; and it can be made again.
    coordinators[0].close()
    coordinators[0] = tfps.ClusterCoordinator(coordinators[0].strategy)
    for coordinator, step in zip(coordinators, steps, strict=True):
        coordinator.schedule(step)
        coordinator.join()
        coordinator.close()
    assert [float(count) for count in counts] == [11.0, 11.0]


def test_a_strategy_is_told_of_workers_that_another_one_holds(
    cluster: tfps.LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    older = _strategy(cluster)
    coordinator = tfps.ClusterCoordinator(older)

    def run_for_ever(number: tf.Tensor) -> tf.Tensor:
        # Not random: TensorFlow runs stateful operations one after another.
        while number > 0.0:
            number = 1.0 + 1.0 / number
        return number

    @tf.function
    def hold_all_threads(number: tf.Tensor) -> list[tf.Tensor]:
        return [run_for_ever(number) for _ in range(os.cpu_count() or 1)]

    endless = [
        coordinator.schedule(hold_all_threads, args=(tf.constant(1.0),))
        for _ in range(coordinator.num_lanes)
    ]
    with pytest.raises(errors.ClusterStartTimeoutError):
        _wait_until_held(cluster)
    begun = time.monotonic()
    with pytest.raises(errors.ClusterStartTimeoutError) as raised:
        tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            startup=tfps.StartupOptions(timeout_seconds=12.0),
        )
    assert 12.0 <= time.monotonic() - begun < 60.0
    for task in cluster.cluster_spec.workers:
        assert f"{task} at {task.address}" in str(raised.value)
        assert f"{task} at {task.address}" in caplog.text
    assert "close()" in str(raised.value)
    coordinator.close()
    for value in endless:
        with pytest.raises(errors.ClosureCancelledError):
            value.fetch()
    newer = tfps.ClusterCoordinator(_strategy(cluster))
    double = tf.function(lambda x: 2 * x)
    assert newer.schedule(double, args=(tf.constant(3),)).fetch() == 6
    newer.close()


def _wait_until_held(cluster: tfps.LocalCluster) -> None:
    """Waits, for a minute, until functions hold all threads of a worker."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        free_workers.wait_for(cluster.cluster_spec.workers, 1.0)


@tf.function
def _run_for_ever() -> tf.Tensor:
    number = tf.constant(1.0)
    while number > 0.0:
        number = 1.0 + tf.random.uniform(())
    return number


def test_a_newer_strategy_supersedes_one_that_still_runs(
    cluster: tfps.LocalCluster,
) -> None:
    """This is the last test of the cluster: its chief's address changes."""
    x, y = np.ones((16, 3), "float32"), np.zeros((16, 1), "float32")

    def model_of(strategy: tfps.ParameterServerStrategy) -> keras.Model:
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(x, y, verbose=0)
        return model

    older = _strategy(cluster)
    coordinator = tfps.ClusterCoordinator(older)
    old_model = model_of(older)
    result = coordinator.schedule(tf.function(lambda: tf.ones(3)))
    result.get()
    endless = coordinator.schedule(_run_for_ever)
    of_chief = tf.Variable([1.0, 2.0])
    ended = []

    def call_from_a_thread_of_the_chief() -> None:
        (device,) = older.worker_devices
        with tf.device(device), pytest.raises(tf.errors.OpError):
            _run_for_ever()
        ended.append(True)

    thread = threading.Thread(target=call_from_a_thread_of_the_chief)
    thread.start()
    spec = cluster.cluster_spec.as_dict()
    with ports.reserved_port() as port:
        spec["chief"] = [f"127.0.0.1:{port}"]
    newer = tfps.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(spec), rpc_layer="grpc"
        )
    )
    thread.join(60.0)
    assert ended
    for use, arguments in (
        (old_model.fit, (x, y)),
        (old_model.predict, (x,)),
        (old_model.get_weights, ()),
        (coordinator.join, ()),
        (result.fetch, ()),
        (endless.fetch, ()),
        (tfps.ClusterCoordinator, (older,)),
    ):
        with pytest.raises(errors.StrategySupersededError, match="by a newer"):
            use(*arguments)
    assert "sequential" in repr(old_model.weights[0])
    model = model_of(newer)
    del old_model, result, endless, use, arguments
    gc.collect()
    model.fit(x, y, verbose=0)
    assert int(model.optimizer.iterations) == 2
    of_chief.assign_add([1.0, 1.0])
    of_chief.assign(2.0 * of_chief)
    assert of_chief.numpy().tolist() == [4.0, 6.0]
    tfps.ClusterCoordinator(newer).close()
