"""Plan of an embedding layer: its variables, and the features of each."""

import dataclasses
from typing import Any

import keras

from tfps_plugin.training.embedding.config import TableConfig
from tfps_plugin.training.embedding.feature_tree import FeatureTree
from tfps_plugin.training.embedding.stacked_lookup import Span
from tfps_plugin.training.embedding.stacks import Stacking
from tfps_plugin.training.embedding.stacks import TableSize
from tfps_plugin.training.embedding.stacks import TableStack
from tfps_plugin.training.embedding.stacks import stack_tables
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.initial_values.stacked_initializer import (
    StackedInitializer,
)

# What a table without a vocabulary has beside its rows.
_BESIDE = ("records", "usage", "counters", "waiting", "unknown")


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


@dataclasses.dataclass(frozen=True)
class DynamicPlan:
    """A table without a vocabulary.

    Attributes:
        table: Its configuration.
        initializer: The Keras initializer of its rows.
        features: Numbers of the features that look up in it, in the user's
            order.
    """

    table: TableConfig
    initializer: Any
    features: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class DynamicStackPlan:
    """Variables of one or more tables without a vocabulary.

    Attributes:
        name: Name of the variable of the rows.
        tables: The tables, by name.
    """

    name: str
    tables: tuple[DynamicPlan, ...]


class EmbeddingPlan:
    """Everything that a layer knows before it has variables.

    It is one object, so that Keras does not replace its lists and dicts with
    trackable ones.

    Attributes:
        tree: The features.
        table_stacking: The user's argument.
        stacks: The variables of tables with a vocabulary.
        dynamic: The variables of those without one.
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
        sizes = [_size(table) for table in self.tree.tables]
        stacks = stack_tables(sizes, table_stacking)
        self.dynamic = tuple(
            DynamicStackPlan(
                stack.name,
                tuple(
                    self._plan_dynamic(size.name, initializers)
                    for size in stack.tables
                ),
            )
            for stack in stacks
            if stack.tables[0].kind
        )
        self.stacks = tuple(
            self._plan(stack, initializers)
            for stack in stacks
            if not stack.tables[0].kind
        )
        self._require_distinct_names()

    def _require_distinct_names(self) -> None:
        """Refuses a table whose name another one gives to its records."""
        taken = {plan.stack.name for plan in self.stacks}
        taken |= {plan.name for plan in self.dynamic}
        taken |= {table.name for table in self.tree.tables}
        own = {plan.name for plan in self.dynamic}
        own |= {each.table.name for p in self.dynamic for each in p.tables}
        for name in sorted(own):
            for what in _BESIDE:
                if (beside := f"{name}_{what}") in taken:
                    raise ValueError(
                        f"The table {name!r} has no vocabulary, and keeps what "
                        f"it knows of its ids as {beside!r}. Expected another "
                        f"name of the table {beside!r}. Received: "
                        f"name={beside!r}"
                    )

    def _plan_dynamic(
        self, name: str, initializers: dict[str, Any]
    ) -> DynamicPlan:
        features = tuple(
            number
            for number in self.tree.as_written
            if self.tree.features[number].table.name == name
        )
        table = self.tree.features[features[0]].table
        return DynamicPlan(table, initializers[name], features)

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
        # A table with storage is alone.
        storage = features[0][1].table.storage
        return StackPlan(
            stack,
            own[0]
            if len(own) == 1 and storage is None
            else StackedInitializer(
                own, [size.rows for size in stack.tables], storage
            ),
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


def _size(table: TableConfig) -> TableSize:
    """Returns a table as far as stacking is concerned."""
    # The limit in memory of a table with storage is its own.
    is_alone = table.storage is not None
    if table.vocabulary_size is not None:
        rows, kind = table.vocabulary_size, ""
    else:
        options = table.row_options
        rows = RowSpace.for_capacity(options.capacity).num_rows
        kind = f"admission={options.admission}, eviction={options.eviction}"
    return TableSize(table.name, rows, table.embedding_dim, is_alone, kind)
