"""Replacement of attributes of Keras and TensorFlow: the mechanism.

`patch_table.py` lists every attribute that this package replaces. Imports
replace nothing: creating the first strategy applies the table, and `undo`
restores the originals.
"""

import dataclasses
import importlib
import inspect
import logging
import threading
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from tfps_plugin import errors

_logger = logging.getLogger("tfps_plugin._compat")

# Stands for the parameters of a target if its wrapper relies on none of them.
ANY_PARAMETERS = "..."
_ABSENT = object()
# Releases whose source was read, by the first part of a target's module.
_READ_ON = {
    "keras": "Keras 3.12 to 3.15",
    "tensorflow": "TensorFlow 2.20 and 2.21",
}


@dataclasses.dataclass(frozen=True)
class Patch:
    """One replaced attribute.

    Attributes:
        target: A module, and an attribute of it or of something in it, such
            as `"keras.src.layers.layer:Layer.build"`.
        parameters: The first parameters of the original, which the wrapper
            relies on, such as `"self, value"`; `ANY_PARAMETERS`: it relies
            on none; None: there is no original, and the attribute is added.
        wrapper: A module of this package and a function in it, such as
            `"training.patches.lookups:take"`. Returns the replacement; its
            argument is the original, or None if there is none.
        reason: Why there is no other way, in one sentence.
        api: The public function of TensorFlow, such as `"tensorflow:gather"`,
            that dispatches to the original: the replacement is registered in
            its place. None: the attribute itself is replaced.
    """

    target: str
    parameters: str | None
    wrapper: str
    reason: str
    api: str | None = None

    @property
    def read_on(self) -> str:
        """The releases whose source the wrapper was written for."""
        return _READ_ON[_library(self.target)]


@dataclasses.dataclass(frozen=True)
class _Place:
    """The owner of a replaced attribute, and its original value.

    Attributes:
        owner: Module or class that has the attribute.
        name: Name of the attribute.
        original: Value of the attribute, inherited or not; None: it has none.
    """

    owner: Any
    name: str
    original: Any

    def own_value(self) -> Any:
        """Returns the owner's own value of the attribute."""
        return vars(self.owner).get(self.name, _ABSENT)


class Patches:
    """The patches that are applied in this process.

    Guarantees: each patch is applied once, however often `apply` is called; if
    one of several does not fit the installed release, none is applied.
    Guarded by `_lock`: the set of applied patches, applying and undoing.

    Threading: any thread. A thread that calls a patched function at the same
    time gets the original or the replacement.
    """

    def __init__(self) -> None:
        """Applies nothing yet."""
        self._lock = threading.RLock()
        # Functions that restore the originals, in the order of application.
        self._undo: dict[Patch, Callable[[], None]] = {}

    @property
    def applied(self) -> tuple[Patch, ...]:
        """The patches that are applied, in the order of application."""
        with self._lock:
            return tuple(self._undo)

    def apply(self, patches: Iterable[Patch]) -> None:
        """Applies patches that are not applied yet.

        Raises:
            UnsupportedError: If the installed release does not have the
                attribute that a wrapper was written for.
        """
        with self._lock:
            new = [patch for patch in patches if patch not in self._undo]
            places = [_find(patch) for patch in new]
            replacements = [
                _load(f"tfps_plugin.{patch.wrapper}")(place.original)
                for patch, place in zip(new, places, strict=True)
            ]
            for patch, place, replacement in zip(
                new, places, replacements, strict=True
            ):
                put = _assign if patch.api is None else _dispatch
                self._undo[patch] = put(patch, place, replacement)

    def undo(self) -> None:
        """Restores the originals, the latest first.

        An attribute that other code has replaced in the meantime stays as it
        is, with a warning. Models and variables of a strategy do not work
        afterwards.
        """
        with self._lock:
            while self._undo:
                _, restore = self._undo.popitem()
                restore()


_process = Patches()
apply = _process.apply
undo = _process.undo


def applied() -> tuple[Patch, ...]:
    """Returns the patches that are applied in this process."""
    return _process.applied


def _find(patch: Patch) -> _Place:
    """Returns the place of a patch that fits the installed release."""
    path, _, name = patch.target.rpartition(
        "." if "." in patch.target.partition(":")[2] else ":"
    )
    try:
        owner = _load(path)
    except (ImportError, AttributeError):
        raise _misfit(patch, "no such module or class") from None
    original = getattr(owner, name, None)
    if patch.parameters is None:
        if original is not None:
            raise _misfit(patch, f"{original!r}")
    elif original is None:
        raise _misfit(patch, "no such attribute")
    elif patch.parameters != ANY_PARAMETERS:
        received = inspect.signature(original)
        if not _fits(patch.parameters, received):
            raise _misfit(patch, str(received))
    return _Place(owner, name, original)


def _load(path: str) -> Any:
    """Returns a module or its attribute by `"module:attribute.path"`."""
    module, _, attributes = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in attributes.split(".") if attributes else ():
        found = getattr(found, name)
    return found


def _fits(expected: str, received: inspect.Signature) -> bool:
    """Returns whether a function has the parameters that a wrapper knows.

    The function may have additional, optional parameters.
    """
    marks: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    parameters = list(received.parameters.values())
    names = [marks.get(each.kind, "") + each.name for each in parameters]
    known = [name.strip() for name in expected.split(",")] if expected else []
    return names[: len(known)] == known and all(
        each.kind in marks or each.default is not each.empty
        for each in parameters[len(known) :]
    )


def _misfit(patch: Patch, received: str) -> errors.UnsupportedError:
    library = _library(patch.target)
    version = getattr(importlib.import_module(library), "__version__", "")
    expected = (
        "no attribute of that name"
        if patch.parameters is None
        else f"parameters ({patch.parameters})"
    )
    return errors.UnsupportedError(
        f"tfps_plugin cannot replace {patch.target} of the installed release, "
        f"{library} {version}: it is not the one that its wrapper was written "
        f"for, and nothing was replaced. Expected: {expected}, as in "
        f"{patch.read_on}. Received: {received}. Install one of these "
        "releases, or a newer tfps_plugin."
    )


def _library(target: str) -> str:
    root = target.partition(":")[0].partition(".")[0]
    # Some classes move between modules from release to release: `_compat` finds
    # them.
    return "keras" if root == "tfps_plugin" else root


def _assign(
    patch: Patch, place: _Place, replacement: Any
) -> Callable[[], None]:
    """Assigns a replacement; returns a function that undoes it."""
    before = place.own_value()
    setattr(place.owner, place.name, replacement)

    def restore() -> None:
        if place.own_value() is not replacement:
            _logger.warning(
                "%s stays as it is: somebody has replaced it after "
                "tfps_plugin.",
                patch.target,
            )
        elif before is _ABSENT:
            delattr(place.owner, place.name)
        else:
            setattr(place.owner, place.name, before)

    return restore


def _dispatch(
    patch: Patch, place: _Place, replacement: Any
) -> Callable[[], None]:
    """Registers a replacement; returns a function that undoes it."""
    # Imported here because the command line applies no patches.
    import tensorflow as tf

    api = _load(patch.api or "")

    def register(new: Any, old: Any) -> None:
        tf.experimental.unregister_dispatch_for(old)
        tf.experimental.dispatch_for_api(api)(new)

    register(replacement, place.original)
    return lambda: register(place.original, replacement)
