"""Tests of per-worker datasets, built on this machine."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.calls.dispatch_context import dispatching
from tfps_plugin.inputs import input_context
from tfps_plugin.inputs.tuning import without_tuning
from tfps_plugin.inputs.worker_dataset import WorkerDataset


def _make(source: Any, num_workers: int = 2) -> WorkerDataset:
    return WorkerDataset(source, num_workers, contextlib.nullcontext)


def _read(dataset: WorkerDataset, worker_index: int) -> list[Any]:
    """All that one worker reads, through its iterator."""
    iterators = iter(dataset)
    context = DispatchContext(worker_index, worker_index, 0, "/device:CPU:0")
    with dispatching(context):
        return [element.numpy().tolist() for element in iterators.current()]


def _sharded(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return tf.data.Dataset.range(5).shard(
        context.num_input_pipelines, context.input_pipeline_id
    )


@pytest.mark.parametrize(
    "source",
    [
        _sharded,
        tf.function(_sharded),
        lambda context=None: _sharded(context),
        lambda: _sharded(input_context.current()),
        tf.function(lambda: _sharded(input_context.current())),
        lambda *args: _sharded(*args),
    ],
    ids=["function", "tf", "optional", "ambient", "tf-ambient", "any"],
)
def test_each_worker_reads_its_own_share(
    source: Callable[..., tf.data.Dataset],
) -> None:
    dataset = _make(source)
    assert _read(dataset, 0) == [0, 2, 4]
    assert _read(dataset, 1) == [1, 3]
    assert dataset.element_spec == tf.TensorSpec([], tf.int64)


def test_iterators_know_their_type() -> None:
    iterators = iter(_make(lambda: tf.data.Dataset.range(3).batch(2)))
    assert iterators.type_spec == tf.data.IteratorSpec(
        tf.TensorSpec([None], tf.int64)
    )


def test_next_is_for_workers() -> None:
    iterators = iter(_make(tf.data.Dataset.range(3)))
    assert iterators.element_spec == tf.TensorSpec([], tf.int64)
    with pytest.raises(errors.UnsupportedError, match="in the step"):
        next(iterators)


def test_methods_are_dataset_functions_too() -> None:
    class Reader:
        size = 3

        @tf.function
        def read(self) -> tf.data.Dataset:
            return tf.data.Dataset.range(self.size)

        def read_share(
            self, context: tf.distribute.InputContext
        ) -> tf.data.Dataset:
            return tf.data.Dataset.range(context.input_pipeline_id + 1)

    reader = Reader()
    assert _read(_make(reader.read), 1) == [0, 1, 2]
    assert _read(_make(reader.read_share), 1) == [0, 1]


def test_concrete_function() -> None:
    concrete = tf.function(
        lambda: tf.data.Dataset.range(2)
    ).get_concrete_function()
    assert _read(_make(concrete), 1) == [0, 1]


def test_dataset_is_read_in_full_by_every_worker() -> None:
    dataset = _make(tf.data.Dataset.range(4).map(lambda x: 2 * x).batch(2))
    for worker_index in range(2):
        assert _read(dataset, worker_index) == [[0, 2], [4, 6]]


def test_iterators_start_at_the_beginning() -> None:
    dataset = _make(tf.data.Dataset.range(2))
    assert _read(dataset, 0) == [0, 1]
    assert _read(dataset, 0) == [0, 1]


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = False
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )
    options.threading.private_threadpool_size = 3
    return options


@pytest.mark.parametrize("as_function", [False, True])
def test_options_survive(as_function: bool) -> None:
    original = tf.data.Dataset.range(3).with_options(_options())

    def dataset_fn() -> tf.data.Dataset:
        return tf.data.Dataset.range(3).with_options(_options())

    built = _make(dataset_fn if as_function else original).build(1)

    def serialized(dataset: tf.data.Dataset) -> bytes:
        variant = tf.data.experimental.to_variant(dataset)
        options: bytes = tf.raw_ops.GetOptions(input_dataset=variant).numpy()
        return options

    assert serialized(built) == serialized(without_tuning(original))
    assert built.options().deterministic is False
    assert built.options().threading.private_threadpool_size == 3


def test_external_state_is_for_the_options_to_say() -> None:
    stateful = tf.data.Dataset.range(3).map(
        lambda x: x + tf.random.uniform([], maxval=3, dtype=tf.int64)
    )
    assert len(_read(_make(stateful), 0)) == 3
    options = tf.data.Options()
    options.experimental_external_state_policy = (
        tf.data.experimental.ExternalStatePolicy.FAIL
    )
    with pytest.raises(errors.InputError, match="stateful"):
        _make(stateful.with_options(options))


def test_table_of_the_chief_travels_with_its_dataset() -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1
    )
    dataset = tf.data.Dataset.from_tensor_slices(["b", "c"]).map(table.lookup)
    assert _read(_make(dataset), 1) == [2, -1]


def _numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "dataset_fn",
    [
        lambda: tf.data.Dataset.from_generator(
            _numbers, output_signature=tf.TensorSpec([], tf.int32)
        ),
        lambda: tf.data.Dataset.range(3).map(
            lambda x: tf.py_function(lambda y: y, [x], tf.int64)
        ),
        lambda: tf.data.Dataset.range(3).map(
            lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)
        ),
    ],
    ids=["from_generator", "py_function", "numpy_function"],
)
@pytest.mark.parametrize("as_function", [False, True])
def test_python_does_not_run_on_workers(
    dataset_fn: Callable[[], tf.data.Dataset], as_function: bool
) -> None:
    with pytest.raises(errors.InputError, match="cannot call Python"):
        _make(dataset_fn if as_function else dataset_fn())


def test_errors_of_the_dataset_function_show_at_once() -> None:
    def dataset_fn() -> tf.data.Dataset:
        raise ZeroDivisionError("in the dataset function")

    with pytest.raises(ZeroDivisionError, match="in the dataset function"):
        _make(dataset_fn)


@pytest.mark.parametrize("source", [3, None, "text"])
def test_refuses_what_is_no_dataset(source: Any) -> None:
    with pytest.raises(TypeError, match="dataset_fn="):
        _make(source)


def test_refuses_functions_of_something_else() -> None:
    with pytest.raises(TypeError, match="must return a tf"):
        _make(lambda: tf.constant(1))
    with pytest.raises(TypeError, match="no argument, or one"):
        _make(lambda context, more: tf.data.Dataset.range(1))


def test_refuses_workers_that_read_different_types() -> None:
    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = 2 + context.input_pipeline_id
        return tf.data.Dataset.range(12).batch(size, drop_remainder=True)

    with pytest.raises(errors.InputError, match="elements of one type"):
        _make(dataset_fn)


def test_refuses_variables_in_the_dataset_function() -> None:
    def dataset_fn() -> tf.data.Dataset:
        tf.Variable(1.0, name="mine")
        return tf.data.Dataset.range(1)

    with pytest.raises(errors.InputError, match="'mine'"):
        _make(dataset_fn)


def test_iter_needs_plain_python() -> None:
    dataset = _make(tf.data.Dataset.range(2))

    @tf.function(autograph=False)
    def step() -> None:
        iter(dataset)

    with pytest.raises(errors.UnsupportedError, match="traced"):
        step()


def test_a_worker_that_is_added_has_the_last_of_more_pipelines() -> None:
    dataset = _make(_sharded)
    dataset.extend_to(4)
    dataset.extend_to(4)
    assert _read(dataset, 4) == [2]
    assert _read(dataset, 0) == [0, 2, 4]
    whole = _make(tf.data.Dataset.range(3))
    whole.extend_to(2)
    assert _read(whole, 2) == [0, 1, 2]


def test_workers_need_not_be_numbered_without_gaps() -> None:
    dataset = WorkerDataset(_sharded, 2, contextlib.nullcontext, indices=[1, 3])
    assert _read(dataset, 1) == [0, 2, 4]
    assert _read(dataset, 3) == [1, 3]


def test_elements_of_another_type_are_refused_for_an_added_worker() -> None:
    def by_number(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.range(12).batch(
            12 // context.num_input_pipelines, drop_remainder=True
        )

    dataset = _make(by_number)
    with pytest.raises(errors.InputError, match="worker 2"):
        dataset.extend_to(2)
