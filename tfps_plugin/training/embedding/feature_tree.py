"""The user's structure of features: flattened, matched, packed, saved."""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin.training.embedding.config import Adopter
from tfps_plugin.training.embedding.config import FeatureConfig
from tfps_plugin.training.embedding.config import TableConfig

Path = tuple[Any, ...]

# Marks a structure that was a tuple.
_TUPLE = "__tuple__"


class FeatureTree:
    """A nested structure with a `FeatureConfig` at each leaf.

    It is an object and not a bare structure, because a layer replaces
    attributes that are dicts or lists with trackable ones.

    Attributes:
        structure: The structure, of our own configurations.
        features: Its leaves, in the order in which Keras flattens them.
        as_written: Numbers of the features, in the order in which the user
            wrote them. Keras sorts dicts by key when it flattens them.
        tables: The tables of the features, each once, in order of first use.
    """

    def __init__(self, structure: Any) -> None:
        """Creates the tree.

        Args:
            structure: The user's structure; may hold configurations of
                keras_rs.

        Raises:
            TypeError: If a leaf is not a configuration.
            ValueError: If there is no feature, or two tables share a name.
            errors.UnsupportedError: If a table asks for an unsupported feature.
        """
        adopter = Adopter()
        leaves = keras.tree.flatten_with_path(structure)
        if not leaves:
            raise ValueError(
                "`feature_configs` is expected to have at least one feature. "
                f"Received: feature_configs={structure!r}"
            )
        self._paths: list[Path] = [tuple(path) for path, _ in leaves]
        self.features: list[FeatureConfig] = [
            adopter.feature(leaf, show(path)) for path, leaf in leaves
        ]
        self.structure = keras.tree.pack_sequence_as(structure, self.features)
        self.as_written: list[int] = list(
            _as_written(self.pack(range(len(self.features))))
        )
        self.tables: list[TableConfig] = list(
            {id(f.table): f.table for f in self.features}.values()
        )
        names = [table.name for table in self.tables]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{names.count(name)} tables have the name {name!r}. Give "
                    "each its own name; or, if the features are to share one "
                    "table, give them the same TableConfig object."
                )

    def match(
        self, values: Any, argument: str, *, none_is_fine: bool = False
    ) -> list[Any]:
        """Returns the leaves of a structure that must match the features'.

        A list may stand for a tuple, and the other way round.

        Args:
            values: The structure.
            argument: The name that the user knows it by.
            none_is_fine: Whether a leaf may be None.

        Returns:
            One leaf for each feature, in their order.

        Raises:
            errors.InputError: If the structure does not match.
        """
        found = {
            tuple(path): leaf
            for path, leaf in keras.tree.flatten_with_path(values)
            if leaf is not None or none_is_fine
        }
        if found.keys() != set(self._paths):
            missing = [p for p in self._paths if p not in found]
            unknown = [p for p in found if p not in self._paths]
            raise errors.InputError(
                f"`{argument}` is expected to have the same structure as "
                "`feature_configs`. Received: "
                f"{_shown('nothing for', missing)}"
                f"{' and ' if missing and unknown else ''}"
                f"{_shown('unknown', unknown)}"
            )
        return [found[path] for path in self._paths]

    def match_shapes(self, shapes: Any) -> list[Any]:
        """Like `match`, for a structure whose leaves are shapes."""
        # Wraps shapes: they are tuples and would be taken for more structure.
        leaves = keras.tree.map_shape_structure(
            lambda sizes: None if sizes is None else _Shape(sizes), shapes
        )
        return [leaf.sizes for leaf in self.match(leaves, "inputs")]

    def pack(self, values: Sequence[Any]) -> Any:
        """Packs one value for each feature into the features' structure."""
        return keras.tree.pack_sequence_as(self.structure, list(values))

    def get_config(self) -> dict[str, Any]:
        """Returns the structure and its tables, in the format of `keras_rs`."""
        # A shared table is written once, and features refer to it by number.
        numbers = {id(table): i for i, table in enumerate(self.tables)}
        return {
            "feature_configs": _encoded(
                self.structure,
                lambda f: {**f.get_config(), "table": numbers[id(f.table)]},
            ),
            "tables": [table.get_config() for table in self.tables],
        }

    @staticmethod
    def structure_from_config(config: dict[str, Any]) -> Any:
        """Returns the structure that `get_config` described."""
        tables = [TableConfig.from_config(table) for table in config["tables"]]

        return _decoded(
            config["feature_configs"],
            lambda described: FeatureConfig(
                **{**described, "table": tables[described["table"]]}
            ),
        )


def _as_written(structure: Any) -> Iterator[Any]:
    """Yields the leaves, with dicts in their own order."""
    if isinstance(structure, dict):
        structure = structure.values()
    elif not isinstance(structure, list | tuple):
        yield structure
        return
    for part in structure:
        yield from _as_written(part)


def _encoded(structure: Any, encode: Callable[[Any], Any]) -> Any:
    """Encodes a structure for JSON, which has no tuples."""
    if isinstance(structure, dict):
        return {key: _encoded(v, encode) for key, v in structure.items()}
    if isinstance(structure, list | tuple):
        parts = [_encoded(part, encode) for part in structure]
        return {_TUPLE: parts} if isinstance(structure, tuple) else parts
    return encode(structure)


def _decoded(described: Any, decode: Callable[[Any], Any]) -> Any:
    if isinstance(described, list | tuple):
        return [_decoded(part, decode) for part in described]
    if _TUPLE in described:
        return tuple(_decoded(part, decode) for part in described[_TUPLE])
    # A feature is a dict whose name is a string. Any other dict holds features,
    # perhaps one that is called "name".
    if isinstance(described.get("name"), str):
        return decode(described)
    return {key: _decoded(v, decode) for key, v in described.items()}


@dataclasses.dataclass(frozen=True)
class _Shape:
    sizes: Sequence[int | None]


def show(path: Path) -> str:
    """Formats a path as users write it: `ads/0`."""
    return "/".join(str(part) for part in path)


def _shown(what: str, paths: list[Path]) -> str:
    if not paths:
        return ""
    return f"{what} {', '.join(repr(show(path)) for path in paths)}"
