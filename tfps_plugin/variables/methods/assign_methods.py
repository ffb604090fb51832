"""The assign methods of `tf.Variable`, for all kinds of variables."""

from typing import Any


class AssignMethods:
    """Every assign method, in terms of one that a subclass defines.

    As in `tf.Variable`, `use_locking` is ignored.
    """

    def _assign_by(
        self, method: str, value: Any, name: str | None, read_value: bool
    ) -> Any:
        """Changes the whole variable.

        Args:
            method: `"assign"`, `"assign_add"` or `"assign_sub"`.
            value: The new value, or the difference.
            name: Name of the operation.
            read_value: Whether to return the variable, and not the operation.
        """
        raise NotImplementedError  # every subclass has its own

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Assigns a value, as `tf.Variable.assign`."""
        return self._assign_by("assign", value, name, read_value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Adds a value, as `tf.Variable.assign_add`."""
        return self._assign_by("assign_add", delta, name, read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtracts a value, as `tf.Variable.assign_sub`."""
        return self._assign_by("assign_sub", delta, name, read_value)
