"""Warnings of steps that move a whole sharded table to the worker.

A lookup costs as much as its rows. Most other operations on a variable need
all of it, in every step.
"""

import math
import os
import sys
import sysconfig
import warnings

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.lookup.table import Table

# Larger tables take more than a tenth of a second on a network of 3 Gbit/s.
_LARGE_BYTES = 32 << 20

_PATHS = sysconfig.get_paths()
# Folders without user code.
_LIBRARIES = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        os.path.dirname(os.path.dirname(__file__)),
        _PATHS["stdlib"],
        _PATHS["purelib"],
        _PATHS["platlib"],
    )
)


def warn_of(table: Table) -> None:
    """Warns of a read of a whole table, once for each table.

    It only warns of large tables, and in functions that are being traced: they
    will read the table each time they are called.

    Args:
        table: A sharded table that is read as a whole.
    """
    num_bytes = math.prod(table.shape.as_list()) * table.dtype.size
    if (
        num_bytes <= _LARGE_BYTES
        or table.has_warned_of_dense_reads
        or compat.function_graph() is None
    ):
        return
    table.has_warned_of_dense_reads = True
    filename, line = _place_in_users_program()
    warnings.warn_explicit(
        f"Each step reads the whole of the sharded table {table.path!r} "
        f"({num_bytes / (1 << 20):.0f} MiB) from its parameter servers, at "
        f"{filename}:{line}. Only single rows are cheap: tf.gather, "
        "tf.nn.embedding_lookup, keras.ops.take on axis 0, and the layers "
        "made of these, such as keras.layers.Embedding. Look up the rows that "
        "the step needs. If it needs them all, have the table on one ps "
        "(tfps.partitioners.MinSizePartitioner with a larger "
        "min_shard_bytes), which saves joining the shards, or make it "
        "smaller.",
        UserWarning,
        filename,
        line,
    )


def _place_in_users_program() -> tuple[str, int]:
    """Returns the file and line of the innermost call outside of libraries."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_library(filename: str) -> bool:
    return (
        filename.startswith("<")
        or "__autograph_generated_file" in filename
        or os.path.realpath(filename).startswith(_LIBRARIES)
    )
