"""Log lines that TensorFlow writes at every start, without use to users.

`TF_CPP_MIN_LOG_LEVEL` silences TensorFlow from the moment it is read. Messages
before that, while libraries are loaded, appear in any case, several times in
each process; so does an error on machines without a GPU. Exactly these lines
are known here, each by its whole text: a line that is merely similar may be the
user's, and is shown. In TensorFlow 2.20 some parts log without checking the
level; their messages are known by source file.
"""

import dataclasses
import re
from collections.abc import Iterable
from collections.abc import Mapping

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""The environment variable from which TensorFlow learns what to log."""

_EVERYTHING = "0"
_ERRORS = "2"

# Beginning of a line: from Abseil before a program has initialized it,
# "I0000 00:00:1795208158.583775   27780 port.cc:153] ", or from TensorFlow's
# older logger, "2025-01-06 12:46:04.065693: I path/to/port.cc:153] ".
_BEGINNING = (
    r"(?:{severity}0000 00:00:\d+\.\d+ +\d+ "
    r"|\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: {severity} )"
    r"(?:[\w.-]+/)*{file}\.(?:cc|h):\d+\] {message}"
)

# The rest of the message follows in further lines.
_TOO_LONG = (
    r"Truncated error message: INVALID_ARGUMENT: *"
    r"(?:(?:\{\{.*\}\})?|\d+ root error\(s\) found\.) *"
)

# (severity, file, message). `.*` only stands for parts that differ by machine.
_LOGGED = (
    # Warns of rounding differences, on every machine alike.
    (
        "I",
        "port",
        r"oneDNN custom operations are on\. You may see slightly different "
        r"numerical results due to floating-point round-off errors from "
        r"different computation orders\. To turn them off, set the "
        r"environment variable `TF_ENABLE_ONEDNN_OPTS=0`\.",
    ),
    # There is no GPU driver: logged once on loading, once on use.
    (
        "I",
        "cudart_stub",
        r"Could not find cuda drivers on your machine, GPU will not be used\.",
    ),
    (
        "E",
        "cuda_(?:platform|driver)",
        r"failed call to cuInit: (?:INTERNAL: CUDA error: Failed call to "
        r"cuInit: )?UNKNOWN ERROR \(303\)",
    ),
    # TensorFlow's package is built for every processor. A second line follows.
    (
        "I",
        "cpu_feature_guard",
        r"This TensorFlow binary is optimized to use available CPU "
        r"instructions in performance-critical operations\.",
    ),
    # TensorFlow 2.20 and earlier, with CUDA: two of its libraries register
    # the same factory, which has no effect.
    (
        "E",
        "cuda_(?:dnn|blas|fft)",
        r"Unable to register (cuDNN|cuBLAS|cuFFT) factory: Attempting to "
        r"register factory for plugin \1 when one has already been registered",
    ),
    (
        "W",
        "computation_placer",
        r"computation placer already registered\. Please check linkage and "
        r"avoid linking the same target more than once\.",
    ),
    ("E", "grpc_util", _TOO_LONG),
    # An unneeded function was on a task that has died.
    ("E", "context", r"Failed to remove function remotely due to .*"),
    # TensorFlow 2.20: routine messages of a task, whatever the level.
    (
        "I",
        "(?:grpc_server_lib|mlir_graph_optimization_pass|eager_service_impl"
        "|remote_tensor_handle_data|kernel_and_device)",
        r".*",
    ),
)
_BARE = (
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are "
    r"written to STDERR",
    r"To enable the following instructions: [A-Z0-9_. ]+, in other operations, "
    r"rebuild TensorFlow with the appropriate compiler flags\.",
)
_NOISE = tuple(
    re.compile(pattern)
    for pattern in (
        *_BARE,
        *(
            _BEGINNING.format(severity=severity, file=file, message=message)
            for severity, file, message in _LOGGED
        ),
    )
)


@dataclasses.dataclass(frozen=True)
class _Continued:
    """A message of several lines.

    Attributes:
        first: Beginning of its first line.
        next_line: Each further line.
        last: The last line.
    """

    first: re.Pattern[str]
    next_line: re.Pattern[str]
    last: re.Pattern[str]


_CONTINUED = (
    _Continued(
        re.compile(
            _BEGINNING.format(
                severity="I",
                file="eager_service_impl",
                message="SessionOptions: .*",
            )
        ),
        re.compile(r" *(?:\w+ \{|\}|\w+: (?:\"[^\"]*\"|[\w.+-]+))|"),
        re.compile(r""),
    ),
    _Continued(
        re.compile(
            _BEGINNING.format(
                severity="E",
                file="context",
                message="Failed to remove function remotely due to .*",
            )
        ),
        re.compile(
            r"Additional GRPC error information from remote target .*|:\{.*\}"
            r"|This could happen if the remote target .*"
        ),
        re.compile(
            r"This could happen if the remote target has been disconnected "
            r"from the client\."
        ),
    ),
    # An error of a step that was too long for gRPC; the chief raises it.
    # With `tf.debugging.enable_check_numerics`, each task involved logs it
    # several times, with a hundred lines each.
    _Continued(
        re.compile(
            _BEGINNING.format(
                severity="E",
                file="grpc_util",
                message=_TOO_LONG,
            )
        ),
        re.compile(
            r"|!!! Detected .* !!!|  [A-Z]\w+.*: .*|  (?:dtype|shape): .*"
            r"|  # of .*|  +Tensor\(.*|  [A-Z][\w ]+\(\d+\):"
            r"|  Stack trace of op's creation .*"
            r"|    \+ .*|(?:    | -> )\|.*| : Tensor had .*|\t \[\[.*"
            r"|Additional GRPC error information from remote target .*"
            r"|:UNKNOWN:.*|.* \.\.\. \[truncated\]"
            # If it failed on several tasks.
            r"|  \(\d+\) INVALID_ARGUMENT: *(?:\{\{.*\}\})? *"
            r"|\d+ (?:successful operations|derived errors ignored)\."
        ),
        # Never matches: the message ends with the first other line.
        re.compile(r"(?!)"),
    ),
)


# The first characters of all these lines, with 0 for every digit.
_HEADS = (
    "WARNING: All log messages before absl::",
    "To enable the following instructions: ",
    "I0000 00:00:00",
    "W0000 00:00:00",
    "E0000 00:00:00",
    "0000-00-00 00:00:00.0",
)
_DIGIT = re.compile(r"[0-9]")
# After this a terminal's line is empty again: a progress line went away.
_CLEARED = b"\r\x1b[K"
_WHOLE_OR_OPEN_LINE = re.compile(
    rb"(?:(?!\r\x1b\[K)[^\n])*(?:\n|\r\x1b\[K)|[^\n]+"
)

# Longer than any known line.
_LONGEST_NOISE_BYTES = 1024


def choose_log_level(
    environ: Mapping[str, str], *, wants_everything: bool
) -> str:
    """Returns the value for `TF_CPP_MIN_LOG_LEVEL`.

    Args:
        environ: The user's environment; its value is kept.
        wants_everything: Whether the user asks for all messages; this wins.
    """
    if wants_everything:
        return _EVERYTHING
    return environ.get(LOG_LEVEL) or _ERRORS


def is_quiet(log_level: str) -> bool:
    """Returns whether a log level hides warnings, and so also the noise.

    Args:
        log_level: A value of `TF_CPP_MIN_LOG_LEVEL`.
    """
    return log_level.isdecimal() and int(log_level) >= int(_ERRORS)


def is_noise(line: str) -> bool:
    """Returns whether a line, without its line break, is known noise."""
    return any(pattern.fullmatch(line) for pattern in _NOISE)


def may_become_noise(beginning: str) -> bool:
    """Returns whether a line with this beginning may turn out to be noise."""
    shape = _DIGIT.sub("0", beginning)
    return any(
        shape.startswith(head) or head.startswith(shape) for head in _HEADS
    )


class LineNoiseFilter:
    """Removes noise from a stream of lines.

    Threading: for one thread.
    """

    def __init__(self) -> None:
        self._within: _Continued | None = None

    def feed(self, lines: Iterable[str]) -> list[str]:
        """Takes the next lines; returns those to be shown."""
        return [line for line in lines if self.shows(line)]

    def shows(self, line: str) -> bool:
        """Takes the next line; returns whether it is to be shown."""
        within = self._within
        if within is not None and within.next_line.fullmatch(line):
            if within.last.fullmatch(line):
                self._within = None
            return False
        self._within = next(
            (each for each in _CONTINUED if each.first.fullmatch(line)), None
        )
        return not is_noise(line)


class NoiseFilter:
    """Removes noise from a stream of bytes, and leaves all other bytes alone.

    A program draws progress bars and asks questions on unfinished lines, so
    bytes pass at once. Only those that may be the beginning of noise are held
    back until their line ends. The reader limits that time with `release`.

    Threading: for one thread.
    """

    def __init__(self) -> None:
        self._held = b""
        self._lines = LineNoiseFilter()
        # The rest of a partly shown line is shown, too.
        self._is_within_line = False

    @property
    def is_holding(self) -> bool:
        """True if bytes are held back."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """Takes the program's output; returns the bytes to be shown now."""
        data = self._held + data
        self._held = b""
        return b"".join(
            piece
            for piece in _WHOLE_OR_OPEN_LINE.findall(data)
            if self._shows(piece)
        )

    def release(self) -> bytes:
        """Stops waiting for the line's end; returns the bytes held back."""
        held = self._held
        self._held = b""
        self._is_within_line = self._is_within_line or bool(held)
        return held

    def _shows(self, piece: bytes) -> bool:
        if piece.endswith(_CLEARED):
            self._is_within_line = False
            return True
        is_whole = piece.endswith(b"\n")
        if self._is_within_line:
            self._is_within_line = not is_whole
            return True
        text = piece.rstrip(b"\r\n").decode(errors="replace")
        if is_whole:
            return self._lines.shows(text)
        if len(piece) <= _LONGEST_NOISE_BYTES and may_become_noise(text):
            self._held = piece
            return False
        self._is_within_line = True
        return True
