"""Merges an increment and the checkpoints before it into a full checkpoint."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_checkpoints as compat
from tfps_plugin.recovery.checkpoints import committing
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.incremental import chain
from tfps_plugin.recovery.incremental import increments
from tfps_plugin.recovery.incremental.chain import Change


def merge(prefixes: Sequence[str], destination: str) -> None:
    """Writes the last checkpoint of a chain as a full checkpoint.

    Needs memory for one slice of 64 MB of a table, and for all variables that
    are not tables.

    Args:
        prefixes: The chain, from `increments.chain_of`.
        destination: Prefix of the new checkpoint.

    Raises:
        tf.errors.OpError: If a file cannot be read or written.
    """
    written = committing.begin(destination)
    try:
        files = _write(prefixes, written)
        committing.commit(written, files, destination)
    except BaseException:
        committing.discard(written)
        raise


def _write(prefixes: Sequence[str], written: str) -> list[str]:
    newest = compat.open_reader(prefixes[-1])
    keys = [increments.keys_of(prefix) for prefix in prefixes]
    own = keys[-1]
    changes = [chain.changes_in(each) for each in keys]
    changed_here = {
        name
        for of_key in changes[-1].values()
        for change in of_key
        for name in (change.rows_key, change.values_key)
    }
    as_it_is = sorted({*own} - changed_here - {chain.DESCRIPTION_KEY})
    files = [
        part_files.save_here(
            f"{written}-own",
            0,
            [
                (key, "", tf.constant(newest.get_tensor(key)))
                for key in as_it_is
            ],
        )
    ]
    for key in sorted(_values(newest) - {*own}):
        begin = max(i for i, each in enumerate(keys) if key in each)
        # A checkpoint that has the whole table has no changes of it.
        follow = [
            (prefixes[i], change)
            for i in range(begin + 1, len(prefixes))
            for change in changes[i].get(key, ())
        ]
        files += _write_table(
            key, prefixes[begin], follow, f"{written}-table-{len(files)}"
        )
    return files


def _values(reader: Any) -> set[str]:
    """Returns the keys of all values of a checkpoint, in whichever file."""
    return {
        attribute.checkpoint_key
        for node in compat.read_object_graph(reader).nodes
        for attribute in node.attributes
    }


def _write_table(
    key: str, prefix: str, changes: Sequence[tuple[str, Change]], path: str
) -> list[str]:
    """Writes a table in slices, each with its changed rows applied."""
    reader = compat.open_reader(prefix)
    num_rows, *row_shape = reader.get_variable_to_shape_map()[key]
    dtype = reader.get_variable_to_dtype_map()[key]
    step = max(1, SLICE_BYTES // max(1, math.prod(row_shape) * dtype.size))
    files: list[str] = []
    for first in range(0, num_rows, step):
        size = min(step, num_rows - first)
        spec = tf.Variable.SaveSliceInfo(
            "",
            [num_rows, *row_shape],
            [first, *[0] * len(row_shape)],
            [size, *row_shape],
        ).spec
        (value,) = _read(prefix, [key], [spec], [dtype])
        for increment, change in changes:
            if change.concerns(first, first + size):
                rows, values = _read(
                    increment,
                    [change.rows_key, change.values_key],
                    ["", ""],
                    [tf.int64, dtype],
                )
                rows = rows.numpy() - first
                mine = np.flatnonzero((rows >= 0) & (rows < size))
                value = tf.tensor_scatter_nd_update(
                    value, rows[mine, None], tf.gather(values, mine)
                )
        files.append(
            part_files.save_here(path, len(files), [(key, spec, value)])
        )
    return files


def _read(
    prefix: str, keys: list[str], specs: list[str], dtypes: list[tf.DType]
) -> list[tf.Tensor]:
    with tf.device("/device:CPU:0"):
        read: list[tf.Tensor] = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=keys,
            shape_and_slices=specs,
            dtypes=dtypes,
        )
    return read
