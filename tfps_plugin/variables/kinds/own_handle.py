"""The handle of a resource that a variable made itself."""

from typing import Any

import tensorflow as tf

from tfps_plugin.cluster.chief import connection


class OwnHandle:
    """A handle that TensorFlow cannot take without asking the variable.

    If a variable's attribute `_handle` is a tensor, eager operations read the
    variable by it in C++, and ignore the lane's copy and any view. If it is
    not a tensor, Python asks the variable for its value instead.
    """

    def __init__(self, tensor: tf.Tensor) -> None:
        """Keeps a handle, with the connection that it was made on.

        Args:
            tensor: The handle.
        """
        self._tensor = tensor
        # After the end of the connection, even asking a handle for its device
        # would crash this process: the handle points to freed memory.
        self._connection = connection.present()
        self.device: str = tensor.device

    def require(self) -> None:
        """Raises StrategySupersededError if the connection has ended."""
        self._connection.require()

    @property
    def is_gone(self) -> bool:
        """True if the connection that it was made on has ended."""
        return self._connection.is_over

    @property
    def tensor(self) -> tf.Tensor:
        """The handle.

        Raises:
            StrategySupersededError: If the connection has ended.
        """
        self._connection.require()
        return self._tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)
