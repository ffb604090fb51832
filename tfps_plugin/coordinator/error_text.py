"""Shortened texts of TensorFlow's function errors. Pure: no TensorFlow.

Before the message, TensorFlow prints the whole stack that created each
operation involved: about a hundred lines of TensorFlow, Keras and this
package.
"""

import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from types import TracebackType

_TITLE = "Graph execution error:"
_DETECTED = re.compile(
    r"^Detected at node (?P<node>.+?) defined at \(most recent call last\):$"
)
_FRAME = re.compile(r'^  File "(?P<path>.+)", line \d+, in .+$')
# Frames of `tf.debugging.enable_check_numerics`. It marks frames that it
# believes to be the user's by an arrow in the next line, and shortens paths.
_CREATION = re.compile(r"^    \+ (?P<path>\S+) \(L\d+\) ")
# gRPC cuts long texts, so the last frame may not be whole.
_TRUNCATED = " ... [truncated]"
_OMITTED = re.compile(
    r"^    \+ (?:\.\.\. \(Omitted \d+ frames\)|.*\.\.\. \[truncated\])$"
)
# Lines of gRPC that repeat the message.
_REPEATED = ("Additional GRPC error information ", ":UNKNOWN:")
_ARROW = " -> |"
_CUT = "..."
# What TensorFlow raises if a function fails on several devices.
_MANY = re.compile(r"\d+ root error\(s\) found\.$", re.MULTILINE)
_ONE = re.compile(r"^  \(\d+\) [A-Z_]+: ", re.MULTILINE)
_END_OF_MANY = re.compile(r"^\d+ successful operations\.$", re.MULTILINE)
_NODE = "\t [["
_OF_LIBRARIES = ("tfps_plugin/", "keras/src/")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = (
    "<",
    _PACKAGE + os.sep,
    *(
        sysconfig.get_path(name) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    ),
)


def _folder(package: str) -> str:
    """Returns the folder of a package, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or not found.origin:
        return os.path.join(sysconfig.get_path("purelib"), package) + os.sep
    return os.path.dirname(found.origin) + os.sep


_FRAMEWORKS = (
    _PACKAGE + os.sep,
    _folder("keras"),
    _folder("tensorflow"),
)


def is_library(path: str) -> bool:
    """Returns whether a file belongs to Python, a library or this package."""
    return path.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in (
        path
    )


def shortened(text: str) -> str:
    """Shortens the text of an error: the message, then the user's lines.

    Returns:
        The text without the frames of libraries; unchanged if it has none, or
        has another form.
    """
    message: list[str] = []
    origins: list[str] = []
    num_left_out = 0
    own: list[str] = []
    node = ""
    body = text.removeprefix(_TITLE).splitlines()
    kept = list(_without_creation(body))
    num_left_out += sum(map(bool, map(_CREATION.match, body)))
    num_left_out -= sum(map(bool, map(_CREATION.match, kept)))
    if not text.startswith(_TITLE) and not num_left_out:
        return text
    for line in kept:
        detected = _DETECTED.match(line)
        frame = _FRAME.match(line)
        if detected is not None:
            origins += _origin(node, own)
            node, own = detected["node"], []
        elif frame is not None and node:
            if is_library(frame["path"]):
                num_left_out += 1
            else:
                own.append(line)
        elif not line.startswith(_REPEATED) and (line.strip() or message):
            message.append(line)
    origins += _origin(node, own)
    if not message or not (own or num_left_out):
        return text
    lines = [_one_of_many("\n".join(message).strip())]
    # Each task on which the operation failed names it once.
    for origin in dict.fromkeys(origins):
        lines += ["", origin]
    if num_left_out:
        lines += ["", f"({num_left_out} frames of libraries are left out.)"]
    return "\n".join(lines)


def users_part(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from the first frame in the user's files on.

    Returns:
        The rest of the traceback; None if there is no such frame.
    """
    while traceback is not None and is_library(
        traceback.tb_frame.f_code.co_filename
    ):
        traceback = traceback.tb_next
    return traceback


def without_frameworks(
    traceback: TracebackType | None,
) -> TracebackType | None:
    """Removes frames of Keras, TensorFlow and this package from a traceback.

    Frames of libraries that they called on the way to the user's code are
    removed too. Frames of libraries that the user's code called stay.

    Returns:
        The other frames; None if none of them is in a file of the user.
    """
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    paths = [one.tb_frame.f_code.co_filename for one in frames]
    own = [
        index
        for index, path in enumerate(paths)
        if not (is_library(path) or path.startswith(_FRAMEWORKS))
    ]
    if not own:
        return None
    kept = []
    is_called_by_framework = True
    for index, path in enumerate(paths):
        if path.startswith(_FRAMEWORKS):
            is_called_by_framework = True
            continue
        if not is_library(path):
            is_called_by_framework = False
        if index > own[-1] or not is_called_by_framework:
            kept.append(frames[index])
    rest: TracebackType | None = None
    for one in reversed(kept):
        rest = TracebackType(rest, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return rest


def _without_creation(lines: list[str]) -> Iterator[str]:
    """Yields the lines, without library frames that created operations."""
    following = [*lines, ""][1:]
    is_left_out = False
    for line, next_line in zip(lines, following, strict=False):
        if is_left_out:
            # It belongs to the previous line.
            is_left_out = False
            continue
        if _OMITTED.match(line):
            continue
        creation = _CREATION.match(line)
        if creation is not None:
            is_left_out = not next_line.startswith(
                _ARROW
            ) or _is_of_a_framework(creation["path"])
        if not is_left_out:
            yield line


def _one_of_many(message: str) -> str:
    """Returns one error of a message that lists it for several devices.

    Other messages, and those that list different errors, stay as they are. An
    error whose end gRPC has cut off is the same as the whole one.
    """
    if not _MANY.match(message):
        return message
    listed = _END_OF_MANY.split(message)[0]
    texts = [*map(_without_nodes, _ONE.split(listed)[1:])]
    whole = max(texts, key=len, default="")
    is_one = all(
        text and whole.startswith(text.removesuffix(_TRUNCATED))
        for text in texts
    )
    return whole if whole and is_one else message


def _without_nodes(text: str) -> str:
    """Returns the text of one error without the nodes that it came through."""
    lines = (line for line in text.splitlines() if not line.startswith(_NODE))
    return "\n".join(lines).strip()


def _is_of_a_framework(path: str) -> bool:
    """Returns whether a path, which may be cut, is Keras's or this package's.

    A cut path may begin in the middle of a folder's name.
    """
    if any(name in path for name in _OF_LIBRARIES):
        return True
    if not path.startswith(_CUT):
        return False
    end = path.removeprefix(_CUT)
    files = (
        getattr(each, "__file__", None) for each in [*sys.modules.values()]
    )
    return any(
        file.endswith(end) and file.startswith(_FRAMEWORKS)
        for file in files
        if file
    )


def _origin(node: str, own: list[str]) -> Iterator[str]:
    if node and own:
        # The innermost frame comes first: it is the user's line.
        yield "\n".join([f"In {node}, made by:", *reversed(own)])
