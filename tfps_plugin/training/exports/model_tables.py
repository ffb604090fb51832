"""The tables of a model, and its other variables."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.exports.manifest import BY_ID
from tfps_plugin.exports.manifest import BY_ROW
from tfps_plugin.exports.unknown_ids import ALL_ZEROS
from tfps_plugin.exports.unknown_ids import UnknownIds
from tfps_plugin.training.embedding.distributed_embedding import (
    DistributedEmbedding,
)
from tfps_plugin.training.embedding.dynamic_embedding import DynamicEmbedding
from tfps_plugin.training.embedding.rows_by_id import RowsById
from tfps_plugin.variables.dynamic.row_space import RowSpace


@dataclasses.dataclass(frozen=True, eq=False)
class ModelTable:
    """A table of a model.

    Attributes:
        name: Its name.
        variable: The `keras.Variable` that holds its rows.
        rows: Its rows there.
        by_id: The rows of a table without a vocabulary; None if rows go by
            their numbers.
    """

    name: str
    variable: keras.Variable
    rows: range
    by_id: RowsById | None = None

    @property
    def records(self) -> keras.Variable | None:
        """The variable with the ids of rows, as in `variables.dynamic`."""
        return None if self.by_id is None else self.by_id.records

    @property
    def space(self) -> RowSpace | None:
        """Rows of all tables that it is stacked with; None: it is alone."""
        if self.by_id is None or self.by_id.space.num_tables == 1:
            return None
        return self.by_id.space

    @property
    def number(self) -> int | None:
        """Its number among the tables by id of its variable; None: alone."""
        if self.by_id is None or self.space is None:
            return None
        return self.by_id.number

    @property
    def kind(self) -> str:
        """Kind of its keys."""
        return BY_ROW if self.by_id is None else BY_ID

    @property
    def width(self) -> int:
        """Length of a row."""
        return int(self.variable.shape[1])

    @property
    def dtype(self) -> np.dtype:
        """Dtype in which its rows are exported, one that every NumPy has."""
        return exported_dtype(
            np.dtype(keras_compat.value_of(self.variable).dtype.as_numpy_dtype)
        )


def exported_dtype(dtype: np.dtype) -> np.dtype:
    """Returns the dtype in which values are exported.

    Args:
        dtype: Their own dtype. NumPy alone has no bfloat16, nor floats of 8
            bits: a float32 holds any of them exactly.
    """
    return dtype if dtype.isbuiltin == 1 else np.dtype(np.float32)


def tables_of(model: Any) -> list[ModelTable]:
    """Returns the tables of all embedding layers of a model.

    Args:
        model: A built Keras model or layer.

    Raises:
        ValueError: If two tables have the same name, or a layer is not built.
        UnsupportedError: If the rows of a layer are not its table alone.
    """
    tables = [
        table
        for layer in keras_compat.layers_within(model)
        for table in _tables_of_layer(layer)
    ]
    names = [table.name for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            "Tables are exported under the names of their layers. Expected a "
            f"name of its own for each. Received twice: {twice}. Give "
            "the layers other names."
        )
    return tables


def _tables_of_layer(layer: Any) -> Iterator[ModelTable]:
    if not isinstance(
        layer, DynamicEmbedding | DistributedEmbedding | keras.layers.Embedding
    ):
        return
    if not layer.built:
        raise ValueError(
            f"The layer {layer.name!r} has no rows to export before it is "
            "built. Call the model on some input first."
        )
    if isinstance(layer, DynamicEmbedding):
        yield _without_vocabulary(layer.name, layer._rows)
    elif isinstance(layer, DistributedEmbedding):
        for name, variable, rows in layer._tables():
            yield ModelTable(f"{layer.name}/{name}", variable, rows)
        for name, by_id in layer._dynamic_tables():
            yield _without_vocabulary(f"{layer.name}/{name}", by_id)
    else:
        if layer.lora_enabled or getattr(layer, "quantization_mode", None):
            raise errors.UnsupportedError(
                f"The embedding {layer.name!r} has LoRA or is quantized, and "
                "its rows are not those of its table. Export a model without "
                "these."
            )
        variable = layer.embeddings
        yield ModelTable(layer.name, variable, range(variable.shape[0]))


def _without_vocabulary(name: str, by_id: RowsById) -> ModelTable:
    rows = by_id.embeddings
    return ModelTable(name, rows, range(rows.shape[0]), by_id)


def dense_variables(
    model: Any, tables: list[ModelTable]
) -> dict[str, keras.Variable]:
    """Returns all weights that are not in tables, by path.

    Args:
        model: The model.
        tables: Its tables.
    """
    in_tables = {id(table.variable) for table in tables}
    for table in tables:
        if table.by_id is not None:
            # Records of its rows; a reader has their ids.
            in_tables |= {id(each) for each in table.by_id.beside}
    variables: dict[str, keras.Variable] = {}
    for variable in model.weights:
        if id(variable) in in_tables:
            continue
        path, number = variable.path, 1
        while path in variables:
            number += 1
            path = f"{variable.path}#{number}"
        variables[path] = variable
    return variables


def dense_values(
    variables: Mapping[str, keras.Variable],
) -> dict[str, np.ndarray]:
    """Returns the values of variables, in dtypes of NumPy.

    Args:
        variables: The variables by path. A string could only be pickled, and
            no step changes it: those are left out.
    """
    values = {
        path: np.asarray(keras.ops.convert_to_numpy(variable))
        for path, variable in variables.items()
    }
    return {
        path: value.astype(exported_dtype(value.dtype), copy=False)
        for path, value in values.items()
        if value.dtype.kind not in "OSU"
    }


def unknown_ids(
    table: ModelTable, variables: Mapping[str, keras.Variable]
) -> UnknownIds:
    """Returns the rule of a table for ids without a row.

    Args:
        table: The table.
        variables: All weights that are not in tables, by path.
    """
    if table.by_id is None:
        return ALL_ZEROS
    shared = table.by_id.shared
    paths = [path for path, each in variables.items() if each is shared]
    return dataclasses.replace(
        table.by_id.unknown_ids, shared=paths[0] if paths else None
    )
