"""Options of a table without a vocabulary, and their checks. Pure."""

import dataclasses
from typing import Any

from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

CAPACITY = 1_000_000
_SPELLED = {
    Admission: "tfps.layers.Admission",
    Eviction: "tfps.layers.Eviction",
    TieredStorage: "tfps.TieredStorage",
}
UNKNOWN = ("initial", "zeros", "shared")


@dataclasses.dataclass(frozen=True)
class RowOptions:
    """Options of a table, see `tfps.layers.DynamicEmbedding`.

    Attributes:
        capacity: Number of ids that there is room for.
        admission: Ids that get rows; None: all.
        eviction: Rows that lose their ids; None: none.
        unknown: Output for ids without a row.
        storage: Where rows are kept; None: in memory.
    """

    capacity: int
    admission: Admission | None
    eviction: Eviction | None
    unknown: str
    storage: TieredStorage | None = None

    def get_config(self) -> dict[str, Any]:
        """Returns the options as JSON has them; `checked` takes them."""
        return {
            "capacity": self.capacity,
            "admission": _config_of(self.admission),
            "eviction": _config_of(self.eviction),
            "unknown": self.unknown,
            "storage": _config_of(self.storage),
        }


def checked(
    owner: str,
    capacity: Any,
    admission: Any,
    eviction: Any,
    unknown: Any,
    storage: Any = None,
) -> RowOptions:
    """Returns the options of a table.

    Args:
        owner: The layer or table, for messages.
        capacity: See `RowOptions`.
        admission: See `RowOptions`; or the configuration of one.
        eviction: See `RowOptions`; or the configuration of one.
        unknown: See `RowOptions`.
        storage: See `RowOptions`; or the configuration of one.

    Raises:
        ValueError: If one of them is wrong.
    """
    return RowOptions(
        positive(owner, "capacity", capacity),
        _policy(owner, "admission", admission, Admission),
        _policy(owner, "eviction", eviction, Eviction),
        one_of(owner, "unknown", unknown, UNKNOWN),
        checked_storage(owner, storage),
    )


def checked_storage(owner: str, storage: Any) -> TieredStorage | None:
    """Returns the place of a table's rows; None: in memory.

    Args:
        owner: The layer or table, for messages.
        storage: The place, or the configuration of one.

    Raises:
        ValueError: If it is neither.
    """
    found: TieredStorage | None = _policy(
        owner, "storage", storage, TieredStorage
    )
    return found


def positive(owner: str, name: str, value: Any) -> int:
    """Returns a value that must be a positive integer.

    Raises:
        ValueError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"`{name}` of {owner} is expected to be a positive integer. "
            f"Received: {name}={value!r}. Give a whole number, such as "
            f"{name}=16."
        )
    return value


def one_of(owner: str, name: str, value: Any, known: tuple[Any, ...]) -> Any:
    """Returns a value that must be one of those known.

    Raises:
        ValueError: If it is none of them.
    """
    if value not in known:
        raise ValueError(
            f"`{name}` of {owner} is expected to be one of "
            f"{', '.join(map(repr, known))}. Received: {name}={value!r}. "
            "Choose one of these, or leave it out."
        )
    return value


def _policy(owner: str, name: str, value: Any, kind: type) -> Any:
    """Returns a policy, also from the configuration of a saved layer."""
    if isinstance(value, dict):
        value = kind(**value)
    if value is not None and not isinstance(value, kind):
        raise ValueError(
            f"`{name}` of {owner} is expected to be a "
            f"{_SPELLED[kind]}, or None. Received: {name}={value!r}. Make one "
            f"with {_SPELLED[kind]}(...), or leave it out."
        )
    return value


def _config_of(policy: Any) -> dict[str, Any] | None:
    return None if policy is None else dataclasses.asdict(policy)
