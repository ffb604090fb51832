"""The tables of an optimizer whose rows catch up."""

import contextlib
import functools
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.training.optimizers.catch_up import of_keras
from tfps_plugin.training.optimizers.catch_up.caught_up_shard import (
    CaughtUpShard,
)
from tfps_plugin.training.optimizers.catch_up.moment import Moment
from tfps_plugin.training.optimizers.catch_up.step_clock import StepClock
from tfps_plugin.training.optimizers.catch_up.zero_gradients import (
    ZeroGradients,
)
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup.table import Table

# Name of the variable of an embedding layer in Keras and keras-rs.
_EMBEDDINGS = "embeddings"
# Attribute of an optimizer that holds its tables; checkpoints save it too.
_ATTRIBUTE = "caught_up_tables"


class CaughtUpTables(tf.Module):
    """Clocks and marks of all tables of one optimizer.

    Threading: immutable once it is made.
    """

    def __init__(
        self, optimizer: Any, tables: Sequence[keras.Variable]
    ) -> None:
        """Creates marks for tables; from now on, their readers catch up.

        Args:
            optimizer: A built Keras optimizer of a strategy.
            tables: Its variables that are looked up by row.

        Raises:
            UnsupportedError: If the optimizer has no closed form for steps
                that do not touch a row.
        """
        super().__init__(name=_ATTRIBUTE)
        rule = of_keras.zero_gradients(optimizer)
        _require_plain(optimizer)
        self._strategy = compat.strategy_of(optimizer)
        self.clocks: dict[str, StepClock] = {}
        # By position: a program that restores them may have other paths.
        self.marks: list[Any] = []
        # By the `_unique_id` of a table; checkpoints accept only names.
        self._clock_keys: dict[str, str] = {}
        for table in tables:
            decay = _decay_of(optimizer, table)
            key = repr(decay)
            if key not in self.clocks:
                self.clocks[key] = self._new_clock(optimizer, rule, decay)
            marks = self._new_marks(table, self.clocks[key])
            self.marks.append(marks)
            self._clock_keys[table.value._unique_id] = key
            find_slots = functools.partial(_slots_of, optimizer, rule, table)
            attach_shards = functools.partial(
                _attach_shards,
                self.clocks[key],
                decay,
                weakref.ref(table.value),
                find_slots,
                marks,
            )
            attach_shards()
            if isinstance(table.value, ShardedVariable):
                table.value.after_recut(
                    functools.partial(attach_shards, with_slots=True)
                )

    def _new_clock(
        self, optimizer: Any, rule: ZeroGradients, decay: float | None
    ) -> StepClock:
        # On the ps of the optimizer's step counter: steps read both together.
        with (
            self._strategy.scope(),
            self._strategy.extended.colocate_vars_with(
                optimizer.iterations.value
            ),
        ):
            return StepClock(optimizer, rule, decay)

    def _new_marks(self, table: keras.Variable, clock: StepClock) -> Any:
        # A keras.Variable is initialized on its ps.
        with (
            self._strategy.scope(),
            self._strategy.extended.colocate_vars_with(table.value),
        ):
            variable = keras.Variable(
                initializer="zeros",
                shape=(table.shape[0], len(clock.names)),
                dtype="float64",
                trainable=False,
                name=f"{table.name}_marks",
            )
        return variable.value

    def clock_of(self, value: Any) -> StepClock | None:
        """Returns the clock of a variable, if its rows catch up."""
        key = self._clock_keys.get(value._unique_id)
        return None if key is None else self.clocks[key]

    @contextlib.contextmanager
    def step(
        self, gradients: Sequence[Any]
    ) -> Iterator[dict[StepClock, tuple[Moment, Moment]]]:
        """Counts a step of the optimizer after its updates.

        Args:
            gradients: The gradients that are sent to the ps.

        Returns:
            A context that gives, for every clock, the moment before and the
            moment after the step.
        """
        moments = {}
        for clock in self.clocks.values():
            now = clock.now(exactly=True)
            moments[clock] = (now, clock.after(now))
        yield moments
        arrivals = [
            g.values if isinstance(g, tf.IndexedSlices) else g
            for g in gradients
        ]
        for clock, (now, after) in moments.items():
            clock.advance(now, after, arrivals)


def _attach_shards(
    clock: StepClock,
    decay: float | None,
    table: Callable[[], Any],
    find_slots: Callable[[], dict[str, Any]],
    marks: Any,
    *,
    with_slots: bool = False,
) -> None:
    """Lets each shard of a table catch up; see `CaughtUpShard`.

    Args:
        clock: As for `CaughtUpShard`, like those that follow.
        decay: Likewise.
        table: Returns the table.
        find_slots: Likewise.
        marks: The marks of all shards.
        with_slots: Whether the optimizer has made its slots.
    """
    value = table()
    for index in range(value.layout.num_shards):
        shard = CaughtUpShard(
            clock, decay, value, index, find_slots, marks.shards[index]
        )
        if with_slots:
            shard.attach_slots()


def attach(optimizer: Any, variables: Sequence[Any]) -> None:
    """Lets the tables among variables catch up; once for each optimizer.

    Tables are the variables that were looked up by row so far. Tables whose
    rows cannot be updated alone get exact updates. Tables that no step changes
    without a gradient have nothing to catch up with.

    Args:
        optimizer: A built Keras optimizer of a strategy.
        variables: The variables that it was built with.

    Raises:
        UnsupportedError: If it is built inside a function, or if there is no
            closed form.
    """
    tables = [
        variable
        for variable in variables
        if isinstance(variable, keras.Variable)
        and is_table(variable)
        and not whole_matrix.needs_whole_matrix(optimizer, variable)
        and variable.constraint is None
        and changes_without_gradient(optimizer, variable)
    ]
    behind = [
        shard
        for variable in variables
        for shard in getattr(variable.value, "shards", ())
        if shard.unseen_steps is not None
    ]
    if not tables and not behind:
        return
    for table in tables:
        if getattr(table.value, "is_on_disk", False):
            raise errors.UnsupportedError(
                f"The table {table.path!r} is on the disks of parameter "
                "servers; its rows cannot catch up with steps that they have "
                "not seen. Received: sparse_update='caught_up'. Give the "
                "strategy another sparse_update, or leave out `storage`."
            )
    if tensorflow_variables.function_graph() is not None:
        raise errors.UnsupportedError(
            "sparse_update='caught_up' needs an optimizer that is built "
            "before a step is traced: the step has looked up rows already. "
            f"Received: optimizer={optimizer.name!r}. Call "
            "optimizer.build(model.trainable_variables) before the first step, "
            "once the model is built."
        )
    for variable in variables:
        if isinstance(variable.value, ShardedVariable):
            variable.value.after_recut(None)
    for shard in behind:
        # Another optimizer trained the table before, and has finished.
        shard.unseen_steps.settle()
        shard.unseen_steps = None
    if tables:
        setattr(optimizer, _ATTRIBUTE, CaughtUpTables(optimizer, tables))


def changes_without_gradient(optimizer: Any, table: keras.Variable) -> bool:
    """Returns whether a step changes rows that its batch does not contain.

    Args:
        optimizer: A Keras optimizer that updates the table by rows.
        table: One of its variables.
    """
    return bool(_decay_of(optimizer, table)) or of_keras.change_rows(optimizer)


def of(optimizer: Any) -> CaughtUpTables | None:
    """Returns the tables of an optimizer that catch up, if there are any."""
    return getattr(optimizer, _ATTRIBUTE, None)


def variables_of(optimizer: Any) -> list[Any]:
    """Returns the catch-up variables of an optimizer, wrapped ones included."""
    inner = getattr(optimizer, "inner_optimizer", None)
    within = [*getattr(optimizer, "optimizers", ())]
    if inner is not None:
        within.append(inner)
    tables = of(optimizer)
    own = [] if tables is None else list(tables.variables)
    return own + [one for each in within for one in variables_of(each)]


def is_table(variable: keras.Variable) -> bool:
    """Returns whether rows of a variable were looked up, or will be."""
    if not isinstance(variable.value, Table) or len(variable.shape) < 2:
        return False
    # Keras builds its Embedding layers without calling them.
    return variable.value.was_looked_up or variable.name == _EMBEDDINGS


def _slots_of(
    optimizer: Any, rule: ZeroGradients, table: keras.Variable
) -> dict[str, Any]:
    index = compat.index_of(optimizer, table)
    return {
        name: slots[index].value for name, slots in rule.slot_lists().items()
    }


def _decay_of(optimizer: Any, table: keras.Variable) -> float | None:
    if not compat.uses_weight_decay(optimizer, table):
        return None
    return compat.weight_decay_of(optimizer, table) or None


def _require_plain(optimizer: Any) -> None:
    """Refuses options that change rows between the steps that touch them."""
    for option in ("use_ema", "gradient_accumulation_steps"):
        value = getattr(optimizer, option)
        if value:
            raise errors.UnsupportedError(
                "sparse_update='caught_up' has no closed form for an optimizer "
                f"with {option}. Received: {option}={value!r} of "
                f"{optimizer.name!r}. Use sparse_update='exact' or 'lazy' with "
                "it."
            )
    if compat.decays_weights_by_itself(optimizer):
        raise errors.UnsupportedError(
            "sparse_update='caught_up' has no closed form for an optimizer "
            "with a weight decay of its own. Received: optimizer="
            f"{type(optimizer).__name__}. Use sparse_update='exact' or 'lazy' "
            "with it."
        )
