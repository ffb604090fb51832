"""Plan of an embedding layer: its variables, and the features of each."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tfps_plugin.training.embedding.config import TableConfig
from tfps_plugin.training.embedding.feature_tree import FeatureTree
from tfps_plugin.training.embedding.stacked_lookup import Span
from tfps_plugin.training.embedding.stacks import Stacking
from tfps_plugin.training.embedding.stacks import TableSize
from tfps_plugin.training.embedding.stacks import TableStack
from tfps_plugin.training.embedding.stacks import stack_tables
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


class EmbeddingPlan:
    """Everything that a layer knows before it has variables.

    It is one object, so that Keras does not replace its lists and dicts with
    trackable ones.

    Attributes:
        tree: The features.
        table_stacking: The user's argument.
        stacks: The variables of tables with a vocabulary.
        dynamic: The tables without one, by name.
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
            TableSize(
                table.name,
                table.vocabulary_size,
                table.embedding_dim,
                # Its limit in memory is its own.
                is_alone=table.storage is not None,
            )
            for table in self.tree.tables
            if table.vocabulary_size is not None
        ]
        # By name, as the stacks: saved state of an optimizer fits as long as
        # the tables are the same.
        self.dynamic = tuple(
            DynamicPlan(
                table,
                initializers[table.name],
                tuple(
                    number
                    for number in self.tree.as_written
                    if self.tree.features[number].table is table
                ),
            )
            for table in sorted(self.tree.tables, key=lambda each: each.name)
            if table.is_dynamic
        )
        _refuse_stacked(table_stacking, self.tree.tables)
        self.stacks = tuple(
            self._plan(stack, initializers)
            for stack in stack_tables(sizes, table_stacking)
        )
        self._require_distinct_names()

    def _require_distinct_names(self) -> None:
        """Refuses a table whose name another one gives to its records."""
        taken = {plan.stack.name for plan in self.stacks}
        taken |= {table.name for table in self.tree.tables}
        for each in self.dynamic:
            for what in _BESIDE:
                if (name := f"{each.table.name}_{what}") in taken:
                    raise ValueError(
                        f"The table {each.table.name!r} has no vocabulary, and "
                        f"keeps what it knows of its ids as {name!r}. Expected "
                        f"another name of the table {name!r}. Received: "
                        f"name={name!r}"
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


def _refuse_stacked(
    table_stacking: Stacking, tables: Sequence[TableConfig]
) -> None:
    """Refuses to stack a table without a vocabulary, or one with storage."""
    if not isinstance(table_stacking, list | tuple):
        return
    given = table_stacking
    # One list of names is one stack.
    if all(isinstance(each, str) for each in table_stacking):
        table_stacking = [list(table_stacking)]
    for table in tables:
        for each in table_stacking:
            names = [each] if isinstance(each, str) else each
            if table.name not in names:
                continue
            if table.is_dynamic:
                reason = (
                    "has no vocabulary; such a table is not stacked. Expected: "
                    "tables with a vocabulary_size"
                )
            elif table.storage is not None and len(names) > 1:
                reason = (
                    "has storage, and so a limit in memory of its own; such a "
                    "table is not stacked with others. Expected: tables "
                    "without storage"
                )
            else:
                continue
            raise ValueError(
                f"`table_stacking` names the table {table.name!r}, which "
                f"{reason}. Received: table_stacking={given!r}"
            )
