"""Tests that preprocessing layers give the same as in one process.

Every epoch is one step on one batch of all rows, so that it does not matter
which worker computes it: single-process Keras is the reference, even for
losses.
"""

import itertools
import pathlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=1)

_TIMEOUT_SECONDS = 120.0
_ROWS = 32
_WORDS = ["ash", "birch", "cedar"]
_RANDOM = np.random.default_rng(0)
_COLUMNS = {
    "words": _RANDOM.choice([*_WORDS, "oak", "elm"], size=(_ROWS, 3)),
    "integers": _RANDOM.integers(0, 9, size=(_ROWS, 3)),
    "floats": _RANDOM.normal(3, 2, size=(_ROWS, 3)).astype("float32"),
}
_COLUMNS["texts"] = np.array([[" ".join(words)] for words in _COLUMNS["words"]])
_LABELS = (_COLUMNS["words"] == "ash").any(axis=1, keepdims=True)
_LABELS = _LABELS.astype("float32")


def _batches(column: str) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_COLUMNS[column]).batch(8)


def _adapted(layer: Any, data: Any) -> Any:
    layer.adapt(data)
    return layer


def _from_file(folder: pathlib.Path) -> layers.StringLookup:
    """Makes a layer from a file that workers elsewhere do not have."""
    path = folder / "vocabulary.txt"
    path.write_text("\n".join(_WORDS))
    layer = layers.StringLookup(vocabulary=str(path))
    path.unlink()
    return layer


def _set_later(folder: pathlib.Path) -> layers.StringLookup:
    layer = layers.StringLookup(num_oov_indices=3)
    layer.set_vocabulary(_WORDS)
    return layer


# Makes a layer in the test's folder. Tables below list the column of each, too.
_Make = Callable[[pathlib.Path], Any]
_GIVEN: dict[str, tuple[str, _Make]] = {
    "int": ("words", lambda _: layers.StringLookup(vocabulary=_WORDS)),
    "file": ("words", _from_file),
    "set, 3 oov": ("words", _set_later),
    "mask": (
        "words",
        lambda _: layers.StringLookup(vocabulary=_WORDS, mask_token="oak"),
    ),
    "one_hot": (
        "words",
        lambda _: layers.StringLookup(vocabulary=_WORDS, output_mode="one_hot"),
    ),
    "sparse count": (
        "words",
        lambda _: layers.StringLookup(
            vocabulary=_WORDS, output_mode="count", sparse=True
        ),
    ),
    "integers": (
        "integers",
        lambda _: layers.IntegerLookup(
            vocabulary=[3, 4, 5], output_mode="multi_hot"
        ),
    ),
    "inverse": (
        "integers",
        lambda _: layers.StringLookup(vocabulary=_WORDS, invert=True),
    ),
    "text": (
        "texts",
        lambda _: layers.TextVectorization(vocabulary=_WORDS, ragged=True),
    ),
    "hashing": ("words", lambda _: layers.Hashing(7, salt=3)),
    "bins": (
        "floats",
        lambda _: layers.Discretization(bin_boundaries=[1.0, 3.0, 4.0]),
    ),
    "normalization": (
        "floats",
        lambda _: layers.Normalization(mean=[1.0, 2, 3], variance=[1.0, 4, 9]),
    ),
    "encoding": (
        "integers",
        lambda _: layers.CategoryEncoding(9, output_mode="count"),
    ),
    "rescaling": ("floats", lambda _: layers.Rescaling(0.5, 1.0)),
}
_ADAPTED: dict[str, tuple[str, _Make]] = {
    "tf_idf": (
        "words",
        lambda _: layers.StringLookup(
            vocabulary=_WORDS, output_mode="tf_idf", idf_weights=[0.2, 0.5, 0.7]
        ),
    ),
    "adapted tf_idf": (
        "words",
        lambda _: _adapted(
            layers.StringLookup(output_mode="tf_idf"), _COLUMNS["words"]
        ),
    ),
    "adapted integers": (
        "integers",
        lambda _: _adapted(
            layers.IntegerLookup(num_oov_indices=2), _batches("integers")
        ),
    ),
    "adapted text": (
        "texts",
        lambda _: _adapted(
            layers.TextVectorization(output_mode="count", ngrams=2),
            _batches("texts"),
        ),
    ),
    "adapted bins": (
        "floats",
        lambda _: _adapted(
            layers.Discretization(num_bins=4), _batches("floats")
        ),
    ),
    "adapted normalization": (
        "floats",
        lambda _: _adapted(layers.Normalization(), _COLUMNS["floats"]),
    ),
    "adapted by batches": (
        "floats",
        lambda _: _adapted(layers.Normalization(axis=None), _batches("floats")),
    ),
}


class _All:
    """Some layers as one function of all columns."""

    def __init__(
        self, made_by: dict[str, tuple[str, _Make]], folder: pathlib.Path
    ) -> None:
        self.layers = {
            name: (column, make(folder))
            for name, (column, make) in made_by.items()
        }
        self.crossing = layers.HashedCrossing(5, output_mode="one_hot")

    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        results = {
            name: layer(columns[column])
            for name, (column, layer) in self.layers.items()
        }
        results["crossing"] = self.crossing(
            (columns["words"][:, :1], columns["integers"][:, :1])
        )
        return {name: _dense(result) for name, result in results.items()}


def _dense(tensor: Any) -> tf.Tensor:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.to_tensor(-1)
    if isinstance(tensor, tf.SparseTensor):
        return tf.sparse.to_dense(tensor)
    return tensor


def _numpy(results: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: result.numpy() for name, result in results.items()}


@pytest.fixture(scope="module")
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    yield strategy
    coordinator.close()


def _in_scope_if(
    scope: bool, strategy: tfps.ParameterServerStrategy, make: Any, *args: Any
) -> Any:
    if not scope:
        return make(*args)
    with strategy.scope():
        return make(*args)


def _on_both_workers(
    strategy: tfps.ParameterServerStrategy, call: Callable[[], Any]
) -> list[Any]:
    """Calls a function on each lane of each worker; returns the results.

    A call that runs again because its worker was lost does not wait for others.
    """
    coordinator = tfps.ClusterCoordinator(strategy)
    barrier = threading.Barrier(coordinator.num_lanes)
    arrivals = itertools.count()

    def call_together() -> Any:
        if next(arrivals) < coordinator.num_lanes:
            barrier.wait(_TIMEOUT_SECONDS)
        return call()

    return list(
        coordinator.fetch(
            [
                coordinator.schedule(call_together)
                for _ in range(coordinator.num_lanes)
            ]
        )
    )


def _homes(function: Any) -> set[str]:
    """Returns the tasks whose tables and iterators a call would use now."""
    return {
        tensor.device.partition("/device")[0]
        for tensor in function.captured_inputs
        if tensor.dtype in (tf.resource, tf.variant)
    }


def _require_equal(actual: Any, expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        if expected[name].dtype == object:
            assert actual[name].tolist() == expected[name].tolist(), name
        else:
            np.testing.assert_allclose(
                actual[name], expected[name], rtol=1e-6, err_msg=name
            )


_COLUMN_TENSORS = {name: tf.constant(c) for name, c in _COLUMNS.items()}


@pytest.mark.compat
@pytest.mark.parametrize("scope", [True, False])
def test_steps_compute_on_their_own_worker(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path, scope: bool
) -> None:
    expected = _numpy(_All(_GIVEN | _ADAPTED, tmp_path)(_COLUMN_TENSORS))
    ours = _in_scope_if(scope, strategy, _All, _GIVEN | _ADAPTED, tmp_path)
    # A call in the chief's own program uses the chief's tables.
    _require_equal(_numpy(ours(_COLUMN_TENSORS)), expected)
    with strategy.scope():
        step = tf.function(lambda: ours(_COLUMN_TENSORS))
        step = step.get_concrete_function()
    homes = set()
    for results, used in _on_both_workers(
        strategy, lambda: (step(), tuple(_homes(step)))
    ):
        _require_equal(results, expected)
        (home,) = used
        homes.add(home)
    assert homes == {f"/job:worker/replica:0/task:{i}" for i in (0, 1)}


@tf.function
def _next(iterator: Any) -> Any:
    return next(iterator)


@pytest.mark.compat
@pytest.mark.parametrize("where", ["scope", "before", "inside", "dataset"])
def test_datasets_compute_on_their_own_worker(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path, where: str
) -> None:
    made_by = _GIVEN if where == "inside" else _GIVEN | _ADAPTED
    if where in ("inside", "dataset"):
        # The workers make these layers, and would have to read the file.
        made_by = {k: v for k, v in made_by.items() if k != "file"}
    expected = _numpy(_All(made_by, tmp_path)(_COLUMN_TENSORS))
    ours = None
    if where != "inside":
        ours = _in_scope_if(where == "scope", strategy, _All, made_by, tmp_path)

    def dataset_fn() -> tf.data.Dataset:
        compute = ours or _All(made_by, tmp_path)
        return (
            tf.data.Dataset.from_tensor_slices(_COLUMNS)
            .repeat()
            .batch(_ROWS)
            .map(lambda columns: compute(columns))
        )

    per_worker = tfps.ClusterCoordinator(strategy).create_per_worker_dataset(
        dataset_fn() if where == "dataset" else dataset_fn
    )
    iterators = iter(per_worker)
    for results in _on_both_workers(
        strategy, lambda: _next(iterators.current())
    ):
        _require_equal(results, expected)


def test_random_layers_in_datasets(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    images = _RANDOM.uniform(size=(_ROWS, 4, 4, 1)).astype("float32")
    with strategy.scope():
        flip = layers.RandomFlip("horizontal", seed=1)

    def dataset_fn() -> tf.data.Dataset:
        return (
            tf.data.Dataset.from_tensors(images)
            .repeat()
            .map(lambda batch: flip(batch))
        )

    iterators = iter(
        tfps.ClusterCoordinator(strategy).create_per_worker_dataset(dataset_fn)
    )
    drawn = set()
    for result in _on_both_workers(
        strategy, lambda: _next(iterators.current())
    ):
        kept = (result == images).all(axis=(1, 2, 3))
        flipped = (result == images[:, :, ::-1]).all(axis=(1, 2, 3))
        assert (kept != flipped).all()
        drawn.add(tuple(kept))
    assert len(drawn) > 1


# Models.


def _data(context: Any = None) -> tf.data.Dataset:
    columns = {name: _COLUMNS[name] for name in ("words", "texts", "floats")}
    return (
        tf.data.Dataset.from_tensor_slices((columns, _LABELS))
        .batch(_ROWS)
        .repeat()
    )


class _Layers:
    """Adapted preprocessing layers of the models below."""

    def __init__(self) -> None:
        self.lookup = _adapted(
            layers.StringLookup(output_mode="tf_idf"), _batches("words")
        )
        self.text = _adapted(
            layers.TextVectorization(
                max_tokens=20, output_mode="int", output_sequence_length=4
            ),
            _COLUMNS["texts"],
        )
        self.scale = _adapted(layers.Normalization(), _COLUMNS["floats"])


class Subclassed(keras.Model):
    def __init__(self, front: _Layers) -> None:
        super().__init__()
        self.lookup, self.text, self.scale = (
            front.lookup,
            front.text,
            front.scale,
        )
        self.vectors = layers.Embedding(20, 4)
        self.flat = layers.Flatten()
        self.head = layers.Dense(1, activation="sigmoid")

    def call(self, columns: dict[str, Any]) -> Any:
        return self.head(
            keras.ops.concatenate(
                [
                    self.lookup(columns["words"]),
                    self.flat(self.vectors(self.text(columns["texts"]))),
                    self.scale(columns["floats"]),
                ],
                axis=1,
            )
        )


def _functional(front: _Layers) -> keras.Model:
    columns = {
        "words": keras.Input((3,), dtype="string", name="words"),
        "texts": keras.Input((1,), dtype="string", name="texts"),
        "floats": keras.Input((3,), name="floats"),
    }
    ids = layers.Flatten()(
        layers.Embedding(20, 4)(front.text(columns["texts"]))
    )
    features = layers.Concatenate()(
        [front.lookup(columns["words"]), ids, front.scale(columns["floats"])]
    )
    return keras.Model(columns, layers.Dense(1, activation="sigmoid")(features))


def _compiled(make: Callable[..., keras.Model], *args: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = make(*args)
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return model


def _fit(model: keras.Model, data: Any) -> list[float]:
    history = model.fit(data, epochs=3, steps_per_epoch=1, verbose=0)
    return list(history.history["loss"])


def _require_same_training(
    ours: keras.Model, alone: keras.Model, data: Any
) -> None:
    """Checks that fit, evaluate and predict give the same as in one process."""
    creator = tfps.DatasetCreator(data)
    np.testing.assert_allclose(
        _fit(ours, creator), _fit(alone, data()), rtol=1e-5
    )
    np.testing.assert_allclose(
        ours.evaluate(creator, steps=1, verbose=0),
        alone.evaluate(data(), steps=1, verbose=0),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        ours.predict(data(), steps=1, verbose=0),
        alone.predict(data(), steps=1, verbose=0),
        rtol=1e-4,
    )


@pytest.mark.compat
@pytest.mark.parametrize(
    ("make", "scope"),
    [(_functional, True), (_functional, False), (Subclassed, False)],
)
@pytest.mark.sample(cases=1)
def test_layers_inside_a_model(
    strategy: tfps.ParameterServerStrategy,
    make: Callable[..., keras.Model],
    scope: bool,
) -> None:
    alone = _compiled(make, _Layers())
    front = _in_scope_if(scope, strategy, _Layers)
    with strategy.scope():
        ours = _compiled(make, front)
    _require_same_training(ours, alone, _data)


def _word_data(context: Any = None) -> tf.data.Dataset:
    return _data().map(lambda columns, labels: (columns["words"], labels))


def test_a_model_has_what_its_layer_learnt_when_it_is_compiled(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """As in one process, steps that were traced before use the old words."""

    def make() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((3,), dtype="string"),
                _adapted(layers.StringLookup(), _COLUMNS["words"]),
                layers.Embedding(10, 4),
                layers.Flatten(),
                layers.Dense(1, activation="sigmoid"),
            ]
        )

    alone = _compiled(make)
    with strategy.scope():
        ours = _compiled(make)
    losses = []
    for model, data in (
        (alone, _word_data()),
        (ours, tfps.DatasetCreator(_word_data)),
    ):
        before = _fit(model, data)
        model.layers[0].adapt(_COLUMNS["words"][:4])
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        losses.append(before + _fit(model, data))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


# Feature spaces.

_FEATURES = {
    "word": _COLUMNS["words"][:, 0],
    "hashed": _COLUMNS["words"][:, 1],
    "number": _COLUMNS["integers"][:, 0],
    "scaled": _COLUMNS["floats"][:, 0],
    "binned": _COLUMNS["floats"][:, 1],
}


def _feature_data(context: Any = None) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices((_FEATURES, _LABELS))
        .batch(_ROWS)
        .repeat()
    )


def _feature_space() -> keras.utils.FeatureSpace:
    space = keras.utils.FeatureSpace(
        {
            "word": keras.utils.FeatureSpace.string_categorical(),
            "hashed": keras.utils.FeatureSpace.string_hashed(5),
            "number": keras.utils.FeatureSpace.integer_categorical(),
            "scaled": keras.utils.FeatureSpace.float_normalized(),
            "binned": keras.utils.FeatureSpace.float_discretized(3),
        },
        crosses=[("word", "number")],
        crossing_dim=8,
        output_mode="concat",
    )
    space.adapt(tf.data.Dataset.from_tensor_slices(_FEATURES).batch(8))
    return space


def _on_features(space: keras.utils.FeatureSpace) -> keras.Model:
    return keras.Model(
        space.get_inputs(),
        layers.Dense(1, activation="sigmoid")(space.get_encoded_features()),
    )


def _on_encoded() -> keras.Model:
    return keras.Sequential([layers.Dense(1, activation="sigmoid")])


@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match")
@pytest.mark.parametrize("scope", [True, False])
def test_feature_spaces(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path, scope: bool
) -> None:
    theirs = _feature_space()
    space = _in_scope_if(scope, strategy, _feature_space)
    with strategy.scope():
        inside = _compiled(_on_features, space)
    np.testing.assert_allclose(
        _fit(inside, tfps.DatasetCreator(_feature_data)),
        _fit(_compiled(_on_features, theirs), _feature_data()),
        rtol=1e-5,
    )

    path = tmp_path / "space.keras"
    space.save(path)
    features = {name: tf.constant(c) for name, c in _FEATURES.items()}
    loaded = _in_scope_if(not scope, strategy, keras.saving.load_model, path)
    np.testing.assert_allclose(loaded(features), theirs(features))


def test_feature_spaces_in_datasets(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    space = _feature_space()

    def encoded(context: Any = None) -> tf.data.Dataset:
        return _feature_data().map(
            lambda features, labels: (space(features), labels)
        )

    with strategy.scope():
        behind = _compiled(_on_encoded)
    np.testing.assert_allclose(
        _fit(behind, tfps.DatasetCreator(encoded)),
        _fit(_compiled(_on_encoded), encoded()),
        rtol=1e-5,
    )


# Files.


@pytest.mark.parametrize(
    ("saved_in_scope", "loaded_in_scope"), [(True, False), (False, True)]
)
def test_models_are_saved_and_loaded_with_what_they_learnt(
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
    saved_in_scope: bool,
    loaded_in_scope: bool,
) -> None:
    path = tmp_path / "model.keras"

    def make() -> keras.Model:
        return _compiled(_functional, _Layers())

    model = _in_scope_if(saved_in_scope, strategy, make)
    _fit(model, tfps.DatasetCreator(_data) if saved_in_scope else _data())
    expected = model.predict(_data(), steps=1, verbose=0)
    model.save(path)
    loaded = _in_scope_if(
        loaded_in_scope, strategy, keras.models.load_model, path
    )
    np.testing.assert_allclose(
        loaded.predict(_data(), steps=1, verbose=0), expected, rtol=1e-5
    )
    if loaded_in_scope:
        np.testing.assert_allclose(
            _fit(loaded, tfps.DatasetCreator(_data)),
            _fit(keras.models.load_model(path), _data()),
            rtol=1e-5,
        )


class _Saved(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(_WORDS, [5.0, 6.0, 7.0]), -1.0
        )
        self.weight = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.string)])
    def look_up(self, words):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return tf.ensure_shape(self.table.lookup(words), [None, 3])

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.string)])
    def weigh(self, words):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return self.look_up(words) * self.weight


@pytest.mark.compat
@pytest.mark.parametrize("scope", [True, False])
@pytest.mark.sample(cases=1)
def test_saved_models_that_have_tables(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path, scope: bool
) -> None:
    path = str(tmp_path / "saved")
    tf.saved_model.save(_Saved(), path)
    theirs = tf.saved_model.load(path)
    ours = _in_scope_if(scope, strategy, tf.saved_model.load, path)

    def mapped(by: Any) -> Any:
        return lambda context=None: _word_data().map(
            lambda words, labels: (by.look_up(words), labels)
        )

    with strategy.scope():
        model = _compiled(_on_encoded)
    np.testing.assert_allclose(
        _fit(model, tfps.DatasetCreator(mapped(ours))),
        _fit(_compiled(_on_encoded), mapped(theirs)()),
        rtol=1e-5,
    )

    def behind(layer: Any) -> keras.Model:
        words = keras.Input((3,), dtype="string")
        head = layers.Dense(1, activation="sigmoid")
        return keras.Model(words, head(layer(words)))

    # Its variable is trainable, so it has to be on a ps.
    endpoint = "weigh" if scope else "look_up"

    def layer() -> Any:
        return layers.TFSMLayer(path, call_endpoint=endpoint)

    made = _in_scope_if(scope, strategy, layer)
    with strategy.scope():
        model = _compiled(behind, made)
    alone = _compiled(behind, layer())
    _require_same_training(model, alone, _word_data)
    assert scope == bool(made.trainable_weights)
    for mine, other in zip(model.weights, alone.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-5)
    with strategy.scope():
        step = tf.function(lambda: ours.look_up(_COLUMN_TENSORS["words"]))
        step = step.get_concrete_function()
    for results, used in _on_both_workers(
        strategy, lambda: (step(), tuple(_homes(step)))
    ):
        np.testing.assert_array_equal(
            results, theirs.look_up(_COLUMN_TENSORS["words"])
        )
        assert all("/job:worker" in task for task in used), used


# Refusals and failures.


@pytest.mark.parametrize("data", [_COLUMNS["words"], _batches("words")])
def test_adapt_is_refused_inside_a_dataset_function(
    strategy: tfps.ParameterServerStrategy, data: Any
) -> None:
    def dataset_fn() -> tf.data.Dataset:
        lookup = _adapted(layers.StringLookup(), data)
        return _word_data().map(lambda words, labels: (lookup(words), labels))

    coordinator = tfps.ClusterCoordinator(strategy)
    with pytest.raises(errors.InputError, match="Make and adapt the layer"):
        coordinator.create_per_worker_dataset(dataset_fn)


def test_a_worker_that_comes_back_has_its_tables_again(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    both = [
        _in_scope_if(scope, strategy, _All, _GIVEN, tmp_path)
        for scope in (True, False)
    ]
    iterators = iter(
        coordinator.create_per_worker_dataset(
            lambda: (
                tf.data.Dataset.from_tensor_slices(_COLUMNS)
                .batch(_ROWS)
                .repeat()
                .map(lambda columns: [compute(columns) for compute in both])
            )
        )
    )
    step = tf.function(lambda: [compute(_COLUMN_TENSORS) for compute in both])

    def call() -> Any:
        return [*step(), *_next(iterators.current())]

    with strategy.scope():
        step = step.get_concrete_function()
    (expected, *_) = _on_both_workers(strategy, call)[0]
    back = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerReadmitted):
            back.set()

    coordinator.events.subscribe(note)
    cluster.kill("worker", 0)
    cluster.start("worker", 0)
    # Callers notice that it is gone.
    _on_both_workers(strategy, call)
    assert back.wait(_TIMEOUT_SECONDS)
    for results in _on_both_workers(strategy, call):
        for result in results:
            _require_equal(result, expected)
