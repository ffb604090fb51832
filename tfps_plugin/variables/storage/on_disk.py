"""Variables whose memory is on the disk of their parameter server.

Shape legend: N rows.
"""

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.mapped_memory import disk_functions
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

# The way out of what cannot be on a disk.
IN_MEMORY_INSTEAD = (
    "keep it in memory: leave out `storage` of its layer, or the key of "
    "`table_storage` that is found in its path"
)

# Larger memory is mapped by itself, see `tensor_memory.is_mapping_of_its_own`.
_ALONE_BYTES = 32 << 20
_MOST_HELD = 16


@dataclasses.dataclass(frozen=True)
class OnDisk:
    """Place of a variable on the disk of its parameter server.

    Attributes:
        storage: The option of its table.
        num_rows: Number of rows of the whole table.
        name: Name of its region of memory, which no other one has.
    """

    storage: TieredStorage
    num_rows: int
    name: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def share_in_memory(self) -> float:
        """The share of its pages that stay in memory."""
        return self.storage.share_in_memory(self.num_rows)

    def like(self) -> "OnDisk":
        """Returns the place of another variable of the same table."""
        return OnDisk(self.storage, self.num_rows)


def no_whole_assignment(path: str, method: str) -> errors.UnsupportedError:
    """Returns the error for changing all rows of a variable on disk.

    Args:
        path: The path of the variable.
        method: The name of the method that would change it.
    """
    return errors.UnsupportedError(
        f"The variable {path!r} is on the disk of its parameter server, where "
        f"steps change single rows only. Received: {method} of the whole "
        "variable. Change rows (scatter_update, scatter_add), or assign it "
        f"outside of functions; or {IN_MEMORY_INSTEAD}."
    )


def bytes_in_memory(variable: Any, num_bytes: int) -> int:
    """Returns the most bytes of a variable that stay in memory.

    Args:
        variable: Any variable, on disk or not.
        num_bytes: Its size.
    """
    place: OnDisk | None = getattr(variable, "on_disk", None)
    return (
        num_bytes if place is None else int(place.share_in_memory * num_bytes)
    )


def allocate(variable: Any, on_disk: OnDisk) -> None:
    """Gives a variable zeros on the disk of its ps, unless it has a value.

    One of less than 32 MB may stay in memory.

    Args:
        variable: The variable.
        on_disk: Its place.

    Raises:
        errors.VariableCreationError: If the ps cannot hold it there.
    """
    with tf.device(variable.device):
        if tf.raw_ops.VarIsInitializedOp(resource=variable.own_handle):
            # A variable whose rows were looked up keeps its memory for good.
            return

    def map_new() -> tf.Tensor:
        """Moves new memory of the variable, which nothing else has.

        In a function: the ps may free a tensor of the chief's a moment later
        than the chief lets go of it.
        """
        with tf.device(variable.device):
            assigned = tf.raw_ops.AssignVariableOp(
                resource=variable.own_handle, value=_new_tensor(variable)
            )
            with tf.control_dependencies([assigned]):
                # Not a copy: the variable's own memory.
                value = compat.read_resource(
                    variable.own_handle, variable.dtype
                )
            return _made(
                disk_functions.MAP,
                value,
                on_disk.name,
                on_disk.storage.folder,
                on_disk.share_in_memory,
            )

    # Concrete: TensorFlow warns of functions that it traces again and again.
    mapped = tf.function(map_new, autograph=False).get_concrete_function()
    row, _ = _until_alone(
        variable, lambda _: _called(variable, on_disk, mapped)
    )
    if row >= 0:
        _require_in_file(variable, on_disk, row)
    elif row == disk_functions.SHARED:
        with tf.device(variable.device):
            tf.raw_ops.AssignVariableOp(
                resource=variable.own_handle,
                value=tf.zeros(variable.shape, variable.dtype),
            )


def _new_tensor(variable: Any) -> tf.Tensor:
    """Returns a tensor like a variable, on the current device."""
    return tf.raw_ops.Empty(
        shape=variable.shape.as_list(), dtype=variable.dtype
    )


def _until_alone(
    variable: Any, use: Callable[[tf.Tensor], int]
) -> tuple[int, tf.Tensor]:
    """Makes a tensor on a ps whose memory belongs to no other, if it is large.

    The C library serves even a large tensor from free memory that it has kept.
    What it has served is held here, so it maps the next one by itself.

    Args:
        variable: A variable of the same size on the same ps.
        use: Takes a tensor, or makes another one; returns `SHARED` if its
            memory is not alone.

    Returns:
        The last result, and the tensor.

    Raises:
        errors.VariableCreationError: If no large tensor has memory of its own.
    """
    num_bytes = variable.shape.num_elements() * variable.dtype.size
    held: list[tf.Tensor] = []
    while True:
        with tf.device(variable.device):
            value = _new_tensor(variable)
        done = use(value)
        if done != disk_functions.SHARED or num_bytes < _ALONE_BYTES:
            return done, value
        held.append(value)
        if len(held) == _MOST_HELD:
            raise errors.VariableCreationError(
                "The memory of a variable, or of a copy of it, cannot be on "
                "the disk of its parameter server, which does not take it "
                "from GNU's malloc. Received: "
                f"variable={variable.name!r}, device={variable.device!r}, "
                f"num_bytes={num_bytes}. TensorFlow with oneDNN has a pool of "
                "its own: set TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1 in the "
                "environment of the parameter server, before its program "
                "imports TensorFlow."
            )


def _require_in_file(variable: Any, on_disk: OnDisk, row: int) -> None:
    """Sees that the memory of a variable is that of its file.

    Args:
        variable: A variable of zeros.
        on_disk: Its place.
        row: The row that is marked.
    """

    def look_up() -> tf.Tensor:
        return tf.raw_ops.ResourceGather(
            resource=variable.own_handle, indices=[row], dtype=variable.dtype
        )

    with tf.device(variable.device):
        # The first lookup gives a variable its memory for good: a copy, if
        # anything else has a tensor of that in the file.
        look_up()
        _made(disk_functions.MARK, on_disk.name)
        found = look_up()
        if not np.any(found.numpy()):
            raise errors.InternalError(
                f"The variable {variable.name!r} did not move to the disk of "
                f"its parameter server. Received: device={variable.device!r}, "
                f"TensorFlow {tf.__version__}. Leave out `storage`, and please "
                "report this."
            )
        tf.raw_ops.ResourceScatterUpdate(
            resource=variable.own_handle,
            indices=[row],
            updates=tf.zeros_like(found),
        )


def copy(variable: Any, on_disk: OnDisk) -> tf.Tensor:
    """Returns a copy of a variable, which is on the disk of its ps, too.

    Args:
        variable: A variable on disk, which nothing changes meanwhile.
        on_disk: Its place.

    Raises:
        errors.VariableCreationError: If the ps cannot hold the copy.
    """
    done, value = _until_alone(
        variable,
        lambda value: _called(
            variable,
            on_disk,
            lambda: _made(
                disk_functions.COPY,
                value,
                on_disk.like().name,
                on_disk.storage.folder,
                on_disk.share_in_memory,
                on_disk.name,
            ),
        ),
    )
    if done in (disk_functions.SHARED, disk_functions.IN_MEMORY):
        with tf.device(variable.device):
            return compat.read_resource(variable.own_handle, variable.dtype)
    return value


def brought(rows_N: tf.Tensor, shard: Any) -> tf.Tensor:
    """Begins to read rows and their slots, if they are on disk.

    Only in code that is placed on their ps.

    Args:
        rows_N: Row numbers of a shard.
        shard: The shard.

    Returns:
        The row numbers, for what reads the rows.
    """
    if shard.on_disk is None:
        return rows_N
    names = [
        each.on_disk.name
        for each in (shard, *shard.family)
        if each.on_disk is not None
    ]
    begun = _made(disk_functions.BRING, rows_N, names)
    with tf.control_dependencies([begun]):
        return tf.identity(rows_N)


def counts(variable: Any, on_disk: OnDisk) -> np.ndarray:
    """Returns bytes of the file, bytes in memory, and pages read for steps.

    Args:
        variable: A variable on disk.
        on_disk: Its place.
    """
    with tf.device(variable.device):
        found = _made(disk_functions.COUNTS, on_disk.name)
    result: np.ndarray = found.numpy()
    return result


def _made(function: str, *inputs: Any) -> tf.Tensor:
    """Makes a call of a function of the current device's ps.

    Args:
        function: Its name.
        *inputs: Its arguments.

    Returns:
        Its result, int64.
    """
    (result,) = tf.raw_ops.PyFunc(
        input=[tf.convert_to_tensor(each) for each in inputs],
        token=function,
        Tout=[tf.int64],
    )
    return result


def _called(
    variable: Any, on_disk: OnDisk, call: Callable[[], tf.Tensor]
) -> int:
    """Returns the result of a call that makes a region of a variable."""
    with tf.device(variable.device):
        try:
            return int(call().numpy())
        except tf.errors.OpError as error:
            if chief_reads.is_about_the_cluster(error):
                raise  # The ps is lost, which is handled elsewhere.
            raise errors.VariableCreationError(
                "A parameter server cannot hold a variable, or the copy of it "
                "for a checkpoint, an export or another parameter server, on "
                "its disk. "
                f"Received: variable={variable.name!r}, device="
                f"{variable.device!r}, num_bytes="
                f"{int(np.prod(variable.shape)) * variable.dtype.size}, "
                f"directory={on_disk.storage.folder!r}: "
                f"{_last_line(error.message)}. Name a directory of a local "
                "disk with room for the whole table, its slots, a copy of "
                "both for checkpoints and exports, and another one with "
                "replicate='ps' "
                "(tfps.TieredStorage(directory=...)); parameter servers must "
                "run on Linux and be started with this package (`tfps run`, "
                "`tfps serve`, tfps.init())."
            ) from error


def _last_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line]
    return (named or lines or [""])[0]
