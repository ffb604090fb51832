"""Options of the strategy by the names that they had before the groups."""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any
from typing import TypedDict

from tfps_plugin.strategy.options import Replicate
from tfps_plugin.strategy.options import StrategyOptions
from tfps_plugin.variables.compression.wire import WireDtype

# The old keyword -> the group that it is in now, and its name there.
_NEW_NAMES = {
    "start_timeout_seconds": ("startup", "timeout_seconds"),
    "min_workers": ("startup", "min_workers"),
    "max_closures_in_flight_per_worker": (
        "scheduling",
        "max_closures_in_flight_per_worker",
    ),
    "prefetch_embeddings": ("scheduling", "prefetch_embeddings"),
    "steps_per_closure": ("scheduling", "steps_per_closure"),
    "communication_fusion": ("communication", "fusion"),
    "wire_dtype": ("communication", "wire_dtype"),
    "in_place_recovery": ("recovery", "in_place"),
    # The name of the group itself: then a string.
    "recovery": ("recovery", "restore"),
    "ps_recovery_timeout_seconds": ("recovery", "timeout_seconds"),
    "replicate": ("recovery", "replicate"),
    "replicate_every_steps": ("recovery", "replicate_every_steps"),
}
_GROUPS = {field.name: field for field in dataclasses.fields(StrategyOptions)}


class DeprecatedKeywords(TypedDict, total=False):
    """Types of the old keywords, for type checkers."""

    start_timeout_seconds: float
    min_workers: int | None
    max_closures_in_flight_per_worker: int | None
    prefetch_embeddings: bool | None
    steps_per_closure: int | None
    communication_fusion: bool
    wire_dtype: WireDtype
    in_place_recovery: bool
    ps_recovery_timeout_seconds: float
    replicate: Replicate | None
    replicate_every_steps: int


def merged(
    groups: Mapping[str, Any], keywords: Mapping[str, Any], *, stacklevel: int
) -> StrategyOptions:
    """Returns the options that a strategy was given in either form.

    Warns of each deprecated keyword and names its new spelling. It is a
    `FutureWarning`, because Python hides a `DeprecationWarning` from programs
    that create their strategy in a separate module.

    Args:
        groups: The groups by name; None for a group that was not given.
        keywords: All other keyword arguments by name.
        stacklevel: Stack level of the warnings; 1 is this function's caller.

    Raises:
        TypeError: If a keyword is unknown, or a group is of another class.
        ValueError: If an option has no meaning, or is given in both forms.
    """
    given = {name: group for name, group in groups.items() if group is not None}
    old = dict(keywords)
    if isinstance(given.get("recovery"), str):
        old["recovery"] = given.pop("recovery")
    in_groups: dict[str, dict[str, Any]] = {}
    for name, value in old.items():
        if name not in _NEW_NAMES:
            raise TypeError(
                "ParameterServerStrategy.__init__() got an unexpected keyword "
                f"argument {name!r}. Expected cluster_resolver, "
                f"variable_partitioner, {', '.join(_GROUPS)} or "
                f"sparse_update. Received: {name}={value!r}"
            )
        group, field = _NEW_NAMES[name]
        if group in given:
            raise ValueError(
                f"{name} is the deprecated form of {_spelling(name, value)}. "
                f"Expected one of the two forms. Received: {name}={value!r} "
                f"and {group}={given[group]!r}. Give {field} in {group} alone."
            )
        warnings.warn(
            f"{name} of tfps.ParameterServerStrategy is deprecated, and the "
            "next release will not know it. Use "
            f"{_spelling(name, value)} instead of {name}={value!r}. Options of "
            "one group go into one object.",
            FutureWarning,
            stacklevel=stacklevel + 1,
        )
        in_groups.setdefault(group, {})[field] = value
    for group, fields in in_groups.items():
        given[group] = _class_of(group)(**fields)
    return StrategyOptions(**given)


class DeprecatedAttribute:
    """Attribute of a strategy by the name that it had before the groups."""

    def __init__(self, new_name: str | None = None) -> None:
        """Creates the descriptor.

        Args:
            new_name: Attribute of the group to read; None: as it is set.
        """
        self._new_name = new_name

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._group, self._field = _NEW_NAMES[name]
        self._new_name = self._new_name or self._field

    def __get__(self, strategy: Any, owner: type) -> Any:
        """Reads the option from its group, with a warning."""
        if strategy is None:
            return self
        self._warn(f"strategy.{self._group}.{self._new_name}")
        return getattr(getattr(strategy, self._group), str(self._new_name))

    def __set__(self, strategy: Any, value: Any) -> None:
        """Replaces the option's group, with a warning, if that is allowed."""
        group = f"strategy.{self._group}"
        self._warn(
            f"{group} = dataclasses.replace({group}, {self._field}={value!r})"
        )
        options = getattr(strategy, self._group)
        replaced = dataclasses.replace(options, **{self._field: value})
        setattr(strategy, self._group, replaced)

    def _warn(self, new_spelling: str) -> None:
        warnings.warn(
            f"strategy.{self._name} is deprecated, and the next release will "
            f"not know it. Use {new_spelling} instead.",
            FutureWarning,
            stacklevel=3,
        )


class DeprecatedAttributes:
    """Attributes of a strategy by their old names; a base of the strategy."""

    max_closures_in_flight_per_worker = DeprecatedAttribute(
        "closures_in_flight"
    )
    prefetch_embeddings = DeprecatedAttribute()
    steps_per_closure = DeprecatedAttribute()
    communication_fusion = DeprecatedAttribute()
    in_place_recovery = DeprecatedAttribute()
    ps_recovery_timeout_seconds = DeprecatedAttribute()
    replicate = DeprecatedAttribute()
    replicate_every_steps = DeprecatedAttribute()


def _spelling(name: str, value: object) -> str:
    """Returns `startup=tfps.StartupOptions(min_workers=2)` for a keyword."""
    group, field = _NEW_NAMES[name]
    return f"{group}=tfps.{_class_of(group).__name__}({field}={value!r})"


def _class_of(group: str) -> Any:
    return _GROUPS[group].type
