"""Plan of an embedding layer: its variables, and the features of each."""

import dataclasses
from typing import Any

import keras

from tfps_plugin.training.embedding.feature_tree import FeatureTree
from tfps_plugin.training.embedding.stacked_lookup import Span
from tfps_plugin.training.embedding.stacks import Stacking
from tfps_plugin.training.embedding.stacks import TableSize
from tfps_plugin.training.embedding.stacks import TableStack
from tfps_plugin.training.embedding.stacks import stack_tables
from tfps_plugin.variables.initial_values.stacked_initializer import (
    StackedInitializer,
)


@dataclasses.dataclass(frozen=True)
class StackPlan:
    """One variable of the layer.

    Attributes:
        stack: Its tables.
        initializer: Its initializer.
        features: Numbers of the features that look up in it, in the user's
            order: a model often joins the results in this order.
        spans: The destination of the ids of each of those features.
    """

    stack: TableStack
    initializer: Any
    features: tuple[int, ...]
    spans: tuple[Span, ...]


class EmbeddingPlan:
    """Everything that a layer knows before it has variables.

    It is one object, so that Keras does not replace its lists and dicts with
    trackable ones.

    Attributes:
        tree: The features.
        table_stacking: The user's argument.
        stacks: The variables.
    """

    def __init__(self, feature_configs: Any, table_stacking: Stacking) -> None:
        """Makes the plan; see `DistributedEmbedding` for arguments."""
        self.tree = FeatureTree(feature_configs)
        self.table_stacking = table_stacking
        # In the order of the tables: without a seed, each takes the next one,
        # as a separate layer would.
        initializers = {
            table.name: keras.initializers.get(table.initializer)
            for table in self.tree.tables
        }
        sizes = [
            TableSize(table.name, table.vocabulary_size, table.embedding_dim)
            for table in self.tree.tables
        ]
        self.stacks = tuple(
            self._plan(stack, initializers)
            for stack in stack_tables(sizes, table_stacking)
        )

    def _plan(
        self, stack: TableStack, initializers: dict[str, Any]
    ) -> StackPlan:
        inside = {size.name for size in stack.tables}
        features = [
            (number, self.tree.features[number])
            for number in self.tree.as_written
            if self.tree.features[number].table.name in inside
        ]
        own = [initializers[size.name] for size in stack.tables]
        return StackPlan(
            stack,
            own[0]
            if len(own) == 1
            else StackedInitializer(own, [size.rows for size in stack.tables]),
            tuple(number for number, _ in features),
            tuple(
                Span(
                    feature.name,
                    feature.table.name,
                    stack.range_of(feature.table.name),
                )
                for _, feature in features
            ),
        )
