"""The methods `map` and `reduce` of a coordinator."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from tfps_plugin.coordinator import caller_checks
from tfps_plugin.coordinator.mapping import mapped_calls
from tfps_plugin.coordinator.mapping.mapped_calls import MappedCalls
from tfps_plugin.coordinator.mapping.mapped_calls import Scheduler
from tfps_plugin.coordinator.mapping.reductions import Op
from tfps_plugin.coordinator.mapping.reductions import Reduction


class MapAndReduce:
    """Runs functions on many items; a base class of the coordinator.

    Threading: any thread; it has no state.
    """

    def map(
        self: Scheduler,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        ordered: bool = True,
        max_in_flight: int | None = None,
        verbose: int = 0,
    ) -> Iterator[Any]:
        """Runs a function on each of many items, and returns its results.

        As Python's `map`, on the workers of the cluster. Calls are scheduled
        as results are taken, so the items may be more than fit in memory, or
        never end. If a worker is lost, its calls run again on the others.

            @tf.function(reduce_retracing=True)
            def total(numbers):
                return tf.reduce_sum(numbers)

            for result in coordinator.map(total, slices):
                ...

        Args:
            fn: As for `schedule`, with one argument. For a `tf.function`,
                numbers, strings and arrays of items become tensors, as in a
                `tf.data.Dataset`. It runs at least once for each item.
            items: Any iterable, such as a list or a `tf.data.Dataset`. An item
                is a nested structure.
            ordered: Whether results come in the order of the items. If False,
                they come as they are completed.
            max_in_flight: Number of items that are scheduled, but whose results
                are not taken yet. None: four for each function that the
                workers run at a time.
            verbose: 1 for a progress bar, 0 for none.

        Returns:
            An iterator over the results, with NumPy arrays in place of tensors.
            The first calls are scheduled at once. Whatever `schedule` and
            `fetch` raise, its `next` raises.

        Raises:
            TypeError: If `fn` is not callable, or `items` not iterable.
            ValueError: If `max_in_flight` or `verbose` is out of range.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            BaseException: As `schedule`, for the first items.
        """
        caller_checks.refuse_inside("map")
        calls = MappedCalls(
            self,
            fn,
            items,
            ordered=ordered,
            max_in_flight=max_in_flight,
            verbose=verbose,
        )
        return (result for _, result in calls)

    def reduce(
        self: Scheduler,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        op: Op | Callable[[Any, Any], Any] = "sum",
        *,
        weight: Callable[[Any], float] | None = None,
        ordered: bool = True,
        max_in_flight: int | None = None,
        verbose: int = 0,
    ) -> Any:
        """Runs a function on each of many items, and combines its results.

        A mean of means weighs each item by its number of examples.

        Args:
            fn: See `map`. All results have the same structure and shapes.
            items: See `map`.
            op: "sum", "mean", "max" or "min" of each number; or a function of
                two results that returns one, as in `functools.reduce`.
            weight: Returns the weight of an item, for "mean". None: the size of
                the first axis of the item's arrays.
            ordered: Whether results are combined in the order of the items, so
                that rounding is the same each time.
            max_in_flight: See `map`.
            verbose: See `map`.

        Returns:
            What all results are together: of the structure and shapes of one.
            Floating-point numbers are added up in float64.

        Raises:
            TypeError: If a result has parts that are no numbers, or as in
                `map`.
            ValueError: If there is no item; if results differ in structure or
                shape; if an item has no number of examples to weigh it by; if
                `weight` is given for another `op`; or as in `map`.
            OverflowError: If a sum of integers does not fit in 64 bits.
            UnsupportedError: See `map`.
            BaseException: Whatever `schedule` and `fetch` raise.
        """
        caller_checks.refuse_inside("reduce")
        reduction = Reduction(op)
        if weight is not None and op != "mean":
            raise ValueError(
                "coordinator.reduce() weighs results for a mean only. Expected "
                'weight= with op="mean". Received: '
                f"op={op!r}, weight={weight!r}. Leave weight out."
            )
        weight_of = mapped_calls.size_of if weight is None else weight
        for item, result in MappedCalls(
            self,
            fn,
            items,
            ordered=ordered,
            max_in_flight=max_in_flight,
            verbose=verbose,
        ):
            if op == "mean":
                reduction.add(result, float(weight_of(item)))
            else:
                reduction.add(result)
        return reduction.result()
