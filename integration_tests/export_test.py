"""Tests of SavedModels from parameter servers, called in a plain process."""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.saving import shard_reader

pytestmark = [
    pytest.mark.compat,
    pytest.mark.cluster(num_workers=1, num_ps=2),
]

_ROWS = 50
_BATCH = 16


@pytest.fixture(scope="module")
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(3),
    )
    # Made here, because its threads outlive the first test that uses it.
    coordinator = tfps.ClusterCoordinator(strategy)
    yield strategy
    coordinator.close()


@dataclasses.dataclass(frozen=True)
class _Exported:
    """An exported model's inputs and result.

    Attributes:
        inputs: Arguments of its signature.
        answer: The model's result for them on the cluster.
    """

    inputs: dict[str, np.ndarray]
    answer: np.ndarray


_Exporter = Callable[[tfps.ParameterServerStrategy, pathlib.Path], _Exported]


def _ids(*shape: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, _ROWS, shape).astype("int32")


def _train(model: keras.Model, inputs: Any) -> None:
    targets = np.ones((_BATCH, 1), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((inputs, targets))
    model.fit(dataset.batch(4).repeat(), steps_per_epoch=4, verbose=0)


def _strings_and_numbers(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    with strategy.scope():
        words = keras.Input((3,), dtype="string", name="words")
        numbers = keras.Input((2,), dtype="int64", name="numbers")
        of_words = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
        of_numbers = keras.layers.IntegerLookup(vocabulary=[10, 20, 30])
        rows = [
            keras.layers.Flatten()(keras.layers.Embedding(4, 4)(lookup(each)))
            for lookup, each in ((of_words, words), (of_numbers, numbers))
        ]
        outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(rows))
        model = keras.Model({"words": words, "numbers": numbers}, outputs)
    inputs = {
        "words": np.array([["a", "b", "?"], ["c", "c", "a"]] * 8),
        "numbers": np.array([[10, 20], [30, 99]] * 8),
    }
    model.export(path, verbose=False)
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    return _Exported(inputs, model.predict(tensors, verbose=0))


class Custom(keras.Model):
    """Model with custom uses of its tables, and a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(_ROWS, 8, mask_zero=True)
        self.other = keras.layers.Embedding(_ROWS, 4)
        self.other.build()
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.3)
        self.dense = keras.layers.Dense(1)
        self.calls = self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int64",
            trainable=False,
            aggregation="only_first_replica",
            name="calls",
        )

    @tf.function
    def look_up(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.nn.embedding_lookup(self.other.embeddings, ids)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        ids = tf.cast(inputs, tf.int32)
        sparse_ids = tf.sparse.from_dense(tf.cast(ids, tf.int64))
        if training:
            self.calls.assign_add(1)
        whole = self.other.embeddings
        rows = [
            tf.reduce_mean(self.table(ids), 1),
            tf.reduce_mean(self.look_up(ids), 1),
            tf.nn.safe_embedding_lookup_sparse(whole, sparse_ids),
        ]
        normal = self.norm(tf.concat(rows, 1), training=training)
        return (
            self.dense(self.drop(normal, training=training))
            + tf.reduce_sum(whole[3:40, 1:])
            + tf.reduce_sum(tf.matmul(tf.ones([1, _ROWS]), whole))
        )


@functools.cache
def _custom(strategy: tfps.ParameterServerStrategy) -> Custom:
    with strategy.scope():
        model = Custom()
        model.compile("adam", "mse")
    _train(model, _ids(_BATCH, 4))
    return model


def _subclass(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    model = _custom(strategy)
    model.export(path, verbose=False)
    ids = _ids(_BATCH, 4)
    answer = model.predict(ids, verbose=0)
    return _Exported({"args_0": ids.astype("float32")}, answer)


def _by_tensorflow_in_scope(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    model = _custom(strategy)
    with strategy.scope():
        tf.saved_model.save(model, path)
    ids = _ids(_BATCH, 4)
    answer = model.predict(ids, verbose=0)
    return _Exported({"inputs": ids.astype("float32")}, answer)


def _endpoints(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    model = _custom(strategy)
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), 0
    )

    @tf.function
    def of_words(words: tf.Tensor) -> tf.Tensor:
        return model(tf.tile(table.lookup(words)[:, None], [1, 4]))

    words = np.array(["a", "b", "?"])
    # The function was traced before, and not for a SavedModel.
    answer = of_words(tf.constant(words)).numpy()
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.track(table)
    archive.add_endpoint("of_words", of_words)
    archive.add_endpoint(
        "training",
        lambda ids: model.call(ids, training=True),
        [keras.InputSpec(shape=(None, 4), dtype="int32")],
    )
    archive.add_variable_collection("slots", model.optimizer.variables)
    archive.write_out(path, verbose=False)
    return _Exported({"words": words}, answer)


def _many_tables(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    features = [
        tfps.layers.FeatureConfig(
            name,
            tfps.layers.TableConfig(name, _ROWS, width, combiner="mean"),
            (None, 3),
            (None, width),
        )
        for name, width in (("a", 4), ("b", 4), ("c", 8))
    ]
    with strategy.scope():
        inputs = {
            each.name: keras.Input((3,), dtype="int32", name=each.name)
            for each in features
        }
        embed = tfps.layers.DistributedEmbedding(
            {each.name: each for each in features}
        )
        rows = list(embed(inputs).values())
        outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(rows))
        model = keras.Model(inputs, outputs)
    ids = {each.name: _ids(_BATCH, 3, seed=7) for each in features}
    model.export(path, verbose=False)
    return _Exported(ids, model.predict(ids, verbose=0))


def _rows_by_id(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    with strategy.scope():
        words = keras.Input((3,), dtype="string", name="words")
        rows = tfps.layers.DynamicEmbedding(4, capacity=100, combiner="mean")
        model = keras.Model(words, keras.layers.Dense(1)(rows(words)))
    rows.import_(["a", "b", "c"], np.random.default_rng(5).normal(size=(3, 4)))
    model.export(path, verbose=False)
    # Half of the examples have a word that has no row.
    asked = np.array([["a", "b", "c"], ["c", "?", "a"]] * 8)
    answer = model(tf.constant(asked)).numpy()
    return _Exported({"words": asked}, answer)


def _signature_of_preprocessing(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    """Exports as in TensorFlow's tutorial of preprocessing."""
    words = ["a", "b", "c"]
    with strategy.scope():
        lookup = keras.layers.StringLookup(vocabulary=words, num_oov_indices=0)
        labels = keras.layers.StringLookup(
            vocabulary=["no", "yes"], num_oov_indices=0, invert=True
        )
        ids = keras.Input((3,), dtype="int64", name="ids")
        rows = keras.layers.Embedding(_ROWS, 4)(ids)
        outputs = keras.layers.Dense(1, activation="sigmoid")(
            keras.layers.Flatten()(rows)
        )
        model = keras.Model(ids, outputs)
        model.compile("adam", "mse")
    model.lookup, model.labels = lookup, labels

    @tf.function
    def serving_fn(raw: tf.Tensor) -> dict[str, tf.Tensor]:
        prediction = model(lookup(raw))
        positive = tf.cast(prediction > 0.5, tf.int64)
        return {
            "output": prediction
            + 0.0 * tf.cast(tf.strings.length(labels(positive)), tf.float32)
        }

    concrete = serving_fn.get_concrete_function(
        tf.TensorSpec((None, 3), tf.string, name="words")
    )
    _train(model, _ids(_BATCH, 3))
    inputs = {"words": np.array([["a", "b", "c"], ["c", "c", "a"]] * 8)}
    answer = concrete(tf.constant(inputs["words"]))["output"].numpy()
    tf.saved_model.save(model, path, signatures={"serving_default": concrete})
    return _Exported(inputs, answer)


def _lora(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    with strategy.scope():
        table = keras.layers.Embedding(_ROWS, 8, lora_rank=2)
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32", name="ids"),
                table,
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
    # They are initially zero.
    table.lora_embeddings_b.assign(np.full((2, 8), 0.3))
    ids = _ids(_BATCH, 4)
    model.export(path, verbose=False)
    return _Exported({"ids": ids}, model.predict(ids, verbose=0))


def _by_keras_in_scope(
    strategy: tfps.ParameterServerStrategy, path: pathlib.Path
) -> _Exported:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32", name="ids"),
                keras.layers.Embedding(_ROWS, 8),
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    ids = _ids(_BATCH, 4)
    _train(model, ids)
    with strategy.scope():
        model.export(path, verbose=False)
    return _Exported({"ids": ids}, model.predict(ids, verbose=0))


class _Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.random.normal([_ROWS, 3]))
        self.scale = tf.Variable([1.0, 2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="ids")])
    def serve(self, ids: tf.Tensor) -> tf.Tensor:
        return {"rows": tf.gather(self.table, ids) * self.scale}


_EXPORTERS: dict[str, _Exporter] = {
    "strings_and_numbers": _strings_and_numbers,
    "subclass": _subclass,
    "by_tensorflow_in_scope": _by_tensorflow_in_scope,
    "by_keras_in_scope": _by_keras_in_scope,
    "endpoints": _endpoints,
    "many_tables": _many_tables,
    "lora": _lora,
    "by_tensorflow_with_preprocessing": _signature_of_preprocessing,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def exported(
    strategy: tfps.ParameterServerStrategy, folder: pathlib.Path
) -> dict[str, _Exported]:
    """Exports all models, and calls them in a plain process."""
    models = {}
    for name, export in _EXPORTERS.items():
        models[name] = export(strategy, folder / name)
    _call_in_a_plain_process(models, folder)
    return models


def _call_in_a_plain_process(
    models: dict[str, _Exported], folder: pathlib.Path
) -> None:
    for name, model in models.items():
        inputs: dict[str, Any] = {**model.inputs}
        np.savez(folder / f"{name}.inputs.npz", **inputs)
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONPATH"
    }
    script = pathlib.Path(__file__).with_name("call_saved_models.py")
    subprocess.run(
        [sys.executable, str(script), str(folder)],
        env=environment,
        check=True,
        timeout=200,
    )


@pytest.mark.parametrize("name", _EXPORTERS)
def test_a_plain_process_predicts_the_same(
    exported: dict[str, _Exported], folder: pathlib.Path, name: str
) -> None:
    answers = np.load(folder / f"{name}.outputs.npz")
    _assert_same(answers, exported[name])
    # The SavedModel lists exactly the variables that it uses.
    gradients = [key for key in answers if key.startswith("gradient/")]
    assert all(answers[key] > 0 for key in gradients)
    assert bool(gradients) == (not name.startswith("by_tensorflow"))


def _assert_same(answers: Any, exported: _Exported) -> None:
    outputs = [key for key in answers if "/" not in key]
    assert len(outputs) == 1
    for key in (outputs[0], f"session/{outputs[0]}"):
        np.testing.assert_allclose(
            answers[key], exported.answer, rtol=1e-5, atol=1e-6
        )


def test_a_plain_process_finds_rows_by_their_ids(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    exported = _rows_by_id(strategy, tmp_path / "rows")
    _call_in_a_plain_process({"rows": exported}, tmp_path)
    _assert_same(np.load(tmp_path / "rows.outputs.npz"), exported)


def test_each_table_is_there_once_and_plain(
    exported: dict[str, _Exported], folder: pathlib.Path
) -> None:
    prefix = str(folder / "subclass/variables/variables")
    shapes = [tuple(shape) for _, shape in tf.train.list_variables(prefix)]
    assert shapes.count((_ROWS, 8)) == 1
    assert shapes.count((_ROWS, 4)) == 1
    graph = tf.saved_model.load(str(folder / "subclass"))
    serve = graph.signatures["serving_default"]
    definition = serve.graph.as_graph_def()
    nodes = [
        *definition.node,
        *(n for f in definition.library.function for n in f.node_def),
    ]
    assert not [node.name for node in nodes if "/job:" in node.device]


def test_no_table_passes_through_the_chief(
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with strategy.scope():
        module = _Module()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        pytest.fail("a table is read by the chief")

    with monkeypatch.context() as patch:
        patch.setattr(shard_reader, "read_whole", refuse)
        patch.setattr(RemoteVariable, "fetch_rows", refuse)
        patch.setattr(RemoteVariable, "read_value", refuse)
        tf.saved_model.save(module, tmp_path, signatures=module.serve)
    reader = tf.train.load_checkpoint(str(tmp_path / "variables/variables"))
    stored = reader.get_tensor("table/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(stored, module.table.numpy())


def test_training_goes_on_after_an_export(
    strategy: tfps.ParameterServerStrategy, exported: dict[str, _Exported]
) -> None:
    """Training does not use the traces for the SavedModel."""
    model = _custom(strategy)
    before = model.table.embeddings.numpy()
    _train(model, _ids(_BATCH, 4))
    assert np.abs(model.table.embeddings.numpy() - before).max() > 0
    assert model.calls.numpy() == 8


def test_a_function_that_holds_values_is_refused(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        module = _Module()
    function = tf.function(lambda ids: {"rows": tf.gather(module.table, ids)})
    concrete = function.get_concrete_function(tf.constant([1, 2]))
    with pytest.raises(errors.UnsupportedError, match="with an input_sig"):
        tf.saved_model.save(module, tmp_path, signatures=concrete)


@pytest.mark.parametrize(
    "endpoints",
    [
        {"call_endpoint": "serve"},
        {"call_endpoint": "serving_default"},
        {
            "call_endpoint": "serve",
            "call_training_endpoint": "serving_default",
        },
    ],
    ids=lambda endpoints: "+".join(endpoints.values()),
)
def test_a_saved_model_is_trained_on(
    strategy: tfps.ParameterServerStrategy,
    exported: dict[str, _Exported],
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    endpoints: dict[str, str],
) -> None:
    """It is a layer of a model, and is exported again with it."""

    class Layer(keras.layers.TFSMLayer):
        def call(self, inputs: Any, training: bool = False) -> Any:
            # A signature returns a dictionary.
            return tf.nest.flatten(super().call(inputs, training=training))[0]

    def make() -> keras.Model:
        ids = keras.Input((4,), dtype="int32", name="ids")
        model = keras.Model(ids, Layer(str(folder / "lora"), **endpoints)(ids))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    plain = make()
    with strategy.scope():
        ours = make()
    ids = _ids(_BATCH, 4)
    targets = np.ones((_BATCH, 1), "float32")
    before = plain.predict(ids, verbose=0)
    np.testing.assert_allclose(before, exported["lora"].answer, rtol=1e-5)
    plain.fit(ids, targets, batch_size=_BATCH, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices((ids, targets))
    ours.fit(dataset.batch(_BATCH), steps_per_epoch=1, verbose=0)
    expected = plain.predict(ids, verbose=0)
    assert np.abs(expected - before).max() > 1e-3
    np.testing.assert_allclose(
        ours.predict(ids, verbose=0), expected, rtol=1e-4, atol=1e-6
    )
    ours.export(tmp_path / "again", verbose=False)
    again = tf.saved_model.load(str(tmp_path / "again"))
    np.testing.assert_allclose(again.serve(ids), expected, rtol=1e-4, atol=1e-6)
