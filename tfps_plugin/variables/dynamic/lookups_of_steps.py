"""Lookups of the steps that are traced.

A gradient of one lookup knows the ids of its rows. The sum of several, as of a
layer that a step calls twice, has row numbers only.
"""

from collections.abc import Iterator

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin.variables.dynamic.found_order import FoundOrder


class LookupsOfSteps:
    """Notes the lookups of one table, in the graphs of the steps.

    Threading: safe from several threads, each of which traces its own graphs.
    """

    def __init__(self, unique_name: str) -> None:
        """Knows of no lookup yet.

        Args:
            unique_name: A name that no other table has.
        """
        self._name = f"lookups_of_{unique_name}"

    def note(self, order: FoundOrder, num_slots: int) -> None:
        """Notes a lookup of the step that is traced.

        Args:
            order: Its rows.
            num_slots: Number of variables that it clears if rows begin anew.
        """
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            self._of(graph).append(order)
            self._of_all(graph).append(num_slots)

    def know_slots(self, num_slots: int) -> bool:
        """Returns whether all lookups of the step that is traced clear them.

        Args:
            num_slots: Number of slots that there are now.
        """
        if tf.executing_eagerly():
            return True
        known = self._of_all(tf.compat.v1.get_default_graph())
        return min(known, default=num_slots) >= num_slots

    def behind(self, order: object, num_shards: int) -> list[FoundOrder]:
        """Returns the lookups that may have found the rows of a gradient.

        Args:
            order: The order of its rows, which is that of its lookup; None:
                there were several, or it is unknown.
            num_shards: Number of shards of the table.
        """
        if isinstance(order, FoundOrder):
            return [order]
        if order is not None or tf.executing_eagerly():
            return []
        return [
            each
            for each in self._within_reach()
            if each.layout.num_shards == num_shards
        ]

    def sees_all(self, graph: tf.Graph) -> bool:
        """Returns whether no lookup of a step is in an inner function.

        Args:
            graph: The graph of the step, which is in no other one.
        """
        return len(self._of(graph)) == len(self._of_all(graph))

    def _within_reach(self) -> Iterator[FoundOrder]:
        """Yields lookups of this graph, and of those around it."""
        for graph in tensorflow_graphs.with_outer(
            tf.compat.v1.get_default_graph()
        ):
            yield from self._of(graph)

    def _of_all(self, graph: tf.Graph) -> list[int]:
        """Returns the slots of all lookups, also those in inner functions."""
        whole = tensorflow_graphs.outermost_function(graph)
        return tensorflow_graphs.attached(whole, f"all_{self._name}", list)

    def _of(self, graph: tf.Graph) -> list[FoundOrder]:
        # The graph keeps them, which keep the graph: they go together.
        return tensorflow_graphs.attached(graph, self._name, list)
