import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.inputs import dataset_recipes
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.inputs.tuning import without_tuning


def _dataset() -> tf.data.Dataset:
    return tf.data.Dataset.range(10).map(lambda x: 2 * x, tf.data.AUTOTUNE)


def test_it_is_not_tuned_and_has_the_same_elements() -> None:
    dataset = without_tuning(_dataset())
    assert dataset.options().autotune.enabled is False
    assert list(dataset.as_numpy_iterator()) == list(range(0, 20, 2))
    assert int(dataset.cardinality()) == 10


@pytest.mark.parametrize("enabled", [True, False])
def test_what_the_user_says_counts(enabled: bool) -> None:
    options = tf.data.Options()
    options.autotune.enabled = enabled
    options.deterministic = False
    dataset = _dataset().with_options(options).batch(2)
    assert without_tuning(dataset) is dataset


def test_other_options_stay() -> None:
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 3
    now = without_tuning(_dataset().with_options(options)).options()
    assert now.deterministic is False
    assert now.threading.private_threadpool_size == 3


def _graph_options(dataset: tf.data.Dataset) -> list[bytes]:
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset)
    )
    graph = tf.compat.v1.GraphDef.FromString(graph.numpy())
    return [
        node.attr["serialized_options"].s
        for node in graph.node
        if node.op == "OptionsDataset"
    ]


def test_no_pipeline_of_ours_is_tuned() -> None:
    expected = _graph_options(without_tuning(_dataset()))
    assert len(expected) == 1
    traced = dataset_recipes.trace(_dataset, tf.init_scope)
    assert _graph_options(traced()) == expected
    shipped = dataset_recipes.ship(_dataset())
    assert _graph_options(shipped()) == expected
    encoded = BatchCodec(_dataset().element_spec).encoded(_dataset())
    assert _graph_options(encoded) == expected
    batches = [element.shape for element in encoded]
    assert np.shape(batches) == (10, 1)
