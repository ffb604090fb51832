"""A program whose first strategy comes between uses of other objects.

    python integration_tests/use_earlier_state.py FOLDER

Each case makes objects, yields, and uses them again when the process is a chief
that has trained a model on a cluster. FOLDER/result.json has the error of each
case; null if it succeeded.
"""

import json
import pathlib
import sys
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

Case = Callable[[pathlib.Path], Iterator[None]]
CASES: dict[str, Case] = {}

_X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
_Y = _X.sum(1, keepdims=True)


def main() -> None:
    """Runs all cases around one strategy."""
    folder = pathlib.Path(sys.argv[1])
    running = {name: case(folder) for name, case in CASES.items()}
    for each in running.values():
        next(each)
    results: dict[str, str | None] = dict.fromkeys(CASES)
    with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
        strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
        with strategy.scope():
            model = _compiled()
        model.fit(_X, _Y, verbose=0)
        for name, each in running.items():
            try:
                next(each, None)
            except BaseException:
                results[name] = traceback.format_exc()
    (folder / "result.json").write_text(json.dumps(results))


def _case(case: Case) -> Case:
    CASES[case.__name__] = case
    return case


def _refused(use: Callable[[], Any], *words: str) -> None:
    """Checks that a use is refused by name, with advice."""
    message = ""
    try:
        use()
    except tfps.errors.UnsupportedError as error:
        message = str(error)
    for word in ("before the tfps.ParameterServerStrategy", *words):
        assert word in message, f"It was not refused: {message!r}"


def _compiled(**options: Any) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4),
            keras.layers.Dropout(0.1),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options
    )
    return model


@_case
def variables(folder: pathlib.Path) -> Iterator[None]:
    """Variables of TensorFlow, of all kinds of values."""
    numbers = tf.Variable([1.0, 2.0])
    text = tf.Variable("text")
    flexible = tf.Variable([1.0], shape=tf.TensorShape(None))
    yield
    assert numbers.numpy().tolist() == [1.0, 2.0]
    numbers.assign([3.0, 4.0])
    numbers.assign_add([1.0, 1.0])
    numbers.scatter_add(tf.IndexedSlices(tf.ones([1]), tf.constant([0])))
    numbers[1].assign(9.0)
    assert (numbers + 0.0).numpy().tolist() == [5.0, 9.0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(numbers * numbers)
    assert tape.gradient(loss, numbers).numpy().tolist() == [10.0, 18.0]
    text.assign("other")
    assert text.numpy() == b"other"
    flexible.assign([[3.0, 4.0]])
    assert flexible.numpy().shape == (1, 2)


@_case
def keras_variable(folder: pathlib.Path) -> Iterator[None]:
    """A keras.Variable, with an optimizer of its own."""
    variable = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.apply([tf.constant([1.0, 1.0])], [variable])
    yield
    assert np.array(variable).shape == (2,)
    variable.assign([3.0, 4.0])
    with tf.GradientTape() as tape:
        loss = keras.ops.sum(variable * variable)
    gradient = tape.gradient(loss, variable.value)
    assert gradient.numpy().tolist() == [6.0, 8.0]
    optimizer.apply([gradient], [variable])
    assert int(optimizer.iterations) == 2
    assert np.all(np.array(variable) < [3.0, 4.0])
    optimizer.learning_rate = 0.5
    assert float(optimizer.learning_rate) == 0.5


@_case
def trained_model(folder: pathlib.Path) -> Iterator[None]:
    """A compiled model that has trained before."""
    model = _compiled()
    model.fit(_X, _Y, verbose=0)
    loss = model.evaluate(_X, _Y, verbose=0)
    predictions = model.predict(_X, verbose=0)
    yield
    np.testing.assert_allclose(
        model.evaluate(_X, _Y, verbose=0), loss, rtol=1e-5
    )
    np.testing.assert_allclose(
        model.predict(_X, verbose=0), predictions, rtol=1e-5
    )
    before = model.get_weights()
    model.fit(_X, _Y, epochs=2, verbose=0)
    assert np.any(model.get_weights()[0] != before[0])
    assert int(model.optimizer.iterations) == 3
    model.train_on_batch(_X, _Y)
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    np.testing.assert_allclose(
        loaded.predict(_X, verbose=0), model.predict(_X, verbose=0), rtol=1e-5
    )
    model.set_weights(before)
    model.compile("sgd", "mse")
    model.fit(_X, _Y, verbose=0)


@_case
def other_models(folder: pathlib.Path) -> Iterator[None]:
    """Models that run eagerly, under XLA, with averages, on a dataset."""
    eager = _compiled(run_eagerly=True)
    jitted = _compiled(jit_compile=True)
    untrained = _compiled()
    averaged = _compiled()
    averaged.compile(keras.optimizers.SGD(0.01, use_ema=True), "mse")
    dataset = tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(8).repeat()
    for model in (eager, jitted, averaged):
        model.fit(dataset, steps_per_epoch=2, verbose=0)
    yield
    for model in (eager, jitted, averaged, untrained):
        before = model.get_weights()
        model.fit(dataset, steps_per_epoch=2, verbose=0)
        assert np.any(model.get_weights()[0] != before[0])


@_case
def custom_loop(folder: pathlib.Path) -> Iterator[None]:
    """A training step that was traced before."""
    model = _compiled()
    optimizer = model.optimizer

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    first = float(step(_X, _Y))
    yield
    losses = [float(step(_X, _Y)) for _ in range(20)]
    assert losses[-1] < first
    step(_X[:8], _Y[:8])
    assert int(optimizer.iterations) == 22


@_case
def metrics(folder: pathlib.Path) -> Iterator[None]:
    """Metrics, which go on counting."""
    mean = keras.metrics.Mean()
    auc = keras.metrics.AUC()
    update = tf.function(lambda value: mean.update_state(value))
    update(tf.constant(2.0))
    auc.update_state([0, 1], [0.2, 0.8])
    yield
    assert float(mean.result()) == 2.0
    update(tf.constant(4.0))
    assert float(mean.result()) == 3.0
    mean.reset_state()
    assert float(mean.result()) == 0.0
    assert float(auc.result()) == 1.0


@_case
def functions(folder: pathlib.Path) -> Iterator[None]:
    """Functions that were traced before."""
    variable = tf.Variable(2.0)
    offset = tf.constant(3.0)
    inner = tf.function(lambda x: x * variable)
    outer = tf.function(lambda x: inner(x) + offset)
    jitted = tf.function(lambda x: x * variable, jit_compile=True)

    @tf.function
    def loop(count: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for _ in tf.range(count):
            total += variable
            variable.assign_add(1.0)
        return total

    one = tf.constant(1.0)
    for function in (outer, jitted):
        function(one)
    loop(tf.constant(2))
    concrete = outer.get_concrete_function(tf.TensorSpec([]))
    yield
    variable.assign(4.0)
    assert float(outer(one)) == 7.0
    assert float(outer(5.0)) == 23.0
    assert float(concrete(one)) == 7.0
    assert float(jitted(one)) == 4.0
    with tf.GradientTape() as tape:
        result = outer(one)
    assert float(tape.gradient(result, variable)) == 1.0
    assert float(loop(tf.constant(2))) == 9.0
    assert float(variable) == 6.0


@_case
def functions_with_python(folder: pathlib.Path) -> Iterator[None]:
    """Functions with operations that name the process."""
    variable = tf.Variable(2.0)
    add = tf.function(
        lambda x: tf.numpy_function(lambda a: a + 1.0, [x], tf.float32)
    )
    outer = tf.function(lambda x: add(x) * variable)

    @tf.function
    def placed(x: tf.Tensor) -> tf.Tensor:
        with tf.device(variable.device):
            return x + variable

    one = tf.constant(1.0)
    outer(one), placed(one)
    concrete = outer.get_concrete_function(tf.TensorSpec([]))
    yield
    assert float(outer(one)) == 4.0
    assert float(add(one)) == 2.0
    assert float(placed(one)) == 3.0
    _refused(lambda: concrete(one), "Call get_concrete_function again")
    again = outer.get_concrete_function(tf.TensorSpec([]))
    assert float(again(one)) == 4.0


@_case
def function_with_its_own_variable(folder: pathlib.Path) -> Iterator[None]:
    """A function that has made its variable when it was first called."""

    class Counter(tf.Module):
        """Counts its calls."""

        def __init__(self) -> None:
            super().__init__()
            self.count: Any = None

        @tf.function
        def __call__(self) -> tf.Tensor:
            """Returns the number of calls."""
            if self.count is None:
                self.count = tf.Variable(0)
            return self.count.assign_add(1)

    counter = Counter()
    counter()
    yield
    assert int(counter()) == 2


@_case
def datasets(folder: pathlib.Path) -> Iterator[None]:
    """Datasets without variables, of all kinds."""
    offset = tf.constant(1, tf.int64)
    numbers = tf.data.Dataset.range(4)
    made = {
        "captured": numbers.map(lambda x: x + offset).map(lambda x: x - offset),
        "shuffled": numbers.shuffle(4, seed=1),
        "batched": numbers.batch(2).prefetch(1).unbatch(),
        "in memory": numbers.cache(),
        "in a file": numbers.cache(str(folder / "cache")),
    }
    for dataset in made.values():
        assert len(list(dataset)) == 4

    @tf.function
    def total() -> tf.Tensor:
        result = tf.constant(0, tf.int64)
        for each in numbers:
            result += each
        return result

    total()
    yield
    for kind, dataset in made.items():
        assert sorted(int(x) for x in dataset) == [0, 1, 2, 3], kind
        assert len(list(dataset.map(lambda x: x * 2))) == 4, kind
    assert int(total()) == 6


@_case
def datasets_with_variables(folder: pathlib.Path) -> Iterator[None]:
    """Datasets whose functions use a variable are refused."""
    variable = tf.Variable(5, dtype=tf.int64)
    dataset = tf.data.Dataset.range(3).map(lambda x: x + variable)
    derived = dataset.batch(2)
    list(derived)
    yield
    for each in (dataset, derived):
        _refused_dataset(each, "use variables or tables")


@_case
def datasets_of_python(folder: pathlib.Path) -> Iterator[None]:
    """Datasets that run Python are refused."""
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(range(4)), output_signature=tf.TensorSpec([], tf.int64)
    )
    list(dataset)
    yield
    _refused_dataset(dataset, "run Python")


def _refused_dataset(dataset: tf.data.Dataset, reason: str) -> None:
    words = ("a dataset of", reason, "Make the dataset after the strategy")
    _refused(lambda: next(iter(dataset)), *words)
    _refused(lambda: dataset.map(lambda x: x), *words)
    _refused(lambda: tf.function(lambda: dataset.take(1))(), *words)


@_case
def iterators(folder: pathlib.Path) -> Iterator[None]:
    """Iterators are refused, wherever they are used."""
    iterator = iter(tf.data.Dataset.range(4))
    given = tf.function(lambda each: next(each))
    captured = tf.function(lambda: next(iterator))
    next(iterator), given(iterator), captured()
    yield
    words = ("an iterator over", "Call iter(dataset) after the strategy")
    _refused(lambda: next(iterator), *words)
    _refused(iterator.get_next, *words)
    _refused(iterator.get_next_as_optional, *words)
    _refused(lambda: given(iterator), *words)
    _refused(captured, *words)
    # The function still works on another iterator.
    assert int(given(iter(tf.data.Dataset.range(4)))) == 0


@_case
def static_tables(folder: pathlib.Path) -> Iterator[None]:
    """Tables keep their contents, even if their file is gone."""
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), 0
    )
    file = folder / "vocabulary.txt"
    file.write_text("a\nb\n")
    from_file = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            str(file),
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        num_oov_buckets=1,
    )
    file.unlink()
    look_up = tf.function(
        lambda key: (table.lookup(key), from_file.lookup(key))
    )
    look_up(tf.constant("a"))
    yield
    assert [int(x) for x in look_up(tf.constant("b"))] == [2, 1]
    assert int(table.lookup(tf.constant("z"))) == 0
    assert int(from_file.lookup(tf.constant("z"))) == 2


@_case
def mutable_tables(folder: pathlib.Path) -> Iterator[None]:
    """Mutable tables keep what was inserted, and can be changed."""
    tables = (
        tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1),
        tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.int64, -1, empty_key=-1, deleted_key=-2
        ),
    )
    functions = []
    one, two = (tf.constant([n], tf.int64) for n in (1, 2))
    for table in tables:
        table.insert(one, one)
        functions.append(tf.function(lambda key, table=table: table[key]))
        functions[-1](one)
    yield
    for table, function in zip(tables, functions, strict=True):
        assert table.lookup(one).numpy().tolist() == [1]
        table.insert(two, two)
        assert function(two).numpy().tolist() == [2]
        assert int(table.size()) == 2


@_case
def preprocessing_layers(folder: pathlib.Path) -> Iterator[None]:
    """Layers that were adapted before."""
    words = keras.layers.StringLookup()
    words.adapt(np.array(["a", "b", "b"]))
    texts = keras.layers.TextVectorization(output_sequence_length=2)
    texts.adapt(np.array(["a b b"]))
    scaled = keras.layers.Normalization()
    scaled.adapt(_X)
    words(np.array(["a"])), texts(np.array(["a"])), scaled(_X)
    yield
    assert np.array(words(np.array(["b", "a", "z"]))).tolist() == [1, 2, 0]
    assert words.get_vocabulary() == ["[UNK]", "b", "a"]
    assert np.array(texts(np.array(["b a"]))).tolist() == [[2, 3]]
    assert abs(float(np.mean(scaled(_X)))) < 1e-5
    words.adapt(np.array(["c"]))
    assert np.array(words(np.array(["c"]))).tolist() == [1]


@_case
def random_numbers(folder: pathlib.Path) -> Iterator[None]:
    """Generators, which go on where they were."""
    tf.random.set_seed(7)
    generators = [tf.random.Generator.from_seed(1) for _ in range(2)]
    seeds = [keras.random.SeedGenerator(1) for _ in range(2)]
    draw = tf.function(lambda: generators[0].normal([2]))
    expected = [generators[1].normal([2]).numpy() for _ in range(2)][1]
    expected_of_keras = [
        np.array(keras.random.normal([2], seed=seeds[1])) for _ in range(2)
    ][1]
    draw()
    keras.random.normal([2], seed=seeds[0])
    yield
    assert draw().numpy().tolist() == expected.tolist()
    drawn = np.array(keras.random.normal([2], seed=seeds[0]))
    assert drawn.tolist() == expected_of_keras.tolist()
    generators[0].reset_from_seed(1)
    tf.random.get_global_generator().normal([2])


@_case
def queues(folder: pathlib.Path) -> Iterator[None]:
    """Queues are refused."""
    queue = tf.queue.FIFOQueue(3, tf.int32, shapes=[[]])
    queue.enqueue(1)
    take = tf.function(lambda: queue.dequeue())
    take.get_concrete_function()
    yield
    words = ("a queue of ['int32']", "Make the queue after the strategy")
    _refused(queue.dequeue, *words)
    _refused(lambda: queue.enqueue(1), *words)
    _refused(take, *words)


@_case
def summary_writers(folder: pathlib.Path) -> Iterator[None]:
    """Summary writers are refused; their summaries are in the files."""
    logs = folder / "logs"
    writer = tf.summary.create_file_writer(str(logs))
    with writer.as_default():
        tf.summary.scalar("loss", 1.0, step=1)
    yield
    (file,) = logs.iterdir()
    events = [*tf.compat.v1.train.summary_iterator(str(file))]
    assert [event.step for event in events] == [0, 1]

    def write() -> None:
        with writer.as_default():
            tf.summary.scalar("loss", 2.0, step=2)

    words = ("a summary writer", "Call tf.summary.create_file_writer after")
    _refused(write, *words)
    _refused(writer.flush, *words)


@_case
def saved_model(folder: pathlib.Path) -> Iterator[None]:
    """A SavedModel that was loaded before."""

    class Model(tf.Module):
        """Multiplies, and looks up."""

        def __init__(self) -> None:
            super().__init__()
            self.factor = tf.Variable(2.0)
            self.table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(["a"], [1]), 0
            )

        @tf.function(input_signature=[tf.TensorSpec([])])
        def times(self, x: tf.Tensor) -> tf.Tensor:
            """Multiplies by the variable."""
            return x * self.factor

        @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
        def look_up(self, key: tf.Tensor) -> tf.Tensor:
            """Looks up in the table."""
            return self.table.lookup(key)

    tf.saved_model.save(Model(), str(folder / "saved"))
    loaded = tf.saved_model.load(str(folder / "saved"))
    loaded.times(tf.constant(1.0)), loaded.look_up(tf.constant("a"))
    yield
    assert float(loaded.times(tf.constant(3.0))) == 6.0
    loaded.factor.assign(3.0)
    assert float(loaded.times(tf.constant(3.0))) == 9.0
    assert int(loaded.look_up(tf.constant("a"))) == 1


@_case
def checkpoints(folder: pathlib.Path) -> Iterator[None]:
    """A checkpoint object that has saved before."""
    variable = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(variable=variable)
    path = checkpoint.save(str(folder / "checkpoint"))
    yield
    variable.assign(5.0)
    checkpoint.restore(path).assert_consumed()
    assert float(variable) == 1.0
    assert checkpoint.save(str(folder / "checkpoint")).endswith("-2")


@_case
def variables_of_other_strategies(folder: pathlib.Path) -> Iterator[None]:
    """Variables of TensorFlow's strategies for one machine."""
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    with mirrored.scope():
        count = tf.Variable(1.0)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        other = tf.Variable(1.0)
    mirrored.run(lambda: count.assign_add(1.0))
    yield
    assert float(count.numpy()) == 2.0
    count.assign(3.0)
    other.assign(4.0)
    assert [float(each.numpy()) for each in (count, other)] == [3.0, 4.0]


@_case
def tensors(folder: pathlib.Path) -> Iterator[None]:
    """Plain, ragged and sparse tensors."""
    plain = tf.constant([1.0, 2.0])
    ragged = tf.ragged.constant([[1], [2, 3]])
    sparse = tf.sparse.from_dense([[1, 0]])
    array = tf.TensorArray(tf.float32, 2).unstack([1.0, 2.0])
    yield
    assert (plain + 1.0).numpy().tolist() == [2.0, 3.0]
    assert (ragged + 1).to_list() == [[2], [3, 4]]
    assert tf.sparse.to_dense(sparse).numpy().tolist() == [[1, 0]]
    assert array.stack().numpy().tolist() == [1.0, 2.0]


if __name__ == "__main__":
    main()
