import json

import pytest
from hypothesis import given
from hypothesis import strategies

from tfps_plugin.cluster.output.terminal_line import TerminalLines


def _draw(*chunks: bytes, keep_colours: bool = False) -> list[str]:
    terminal = TerminalLines(keep_colours=keep_colours)
    lines = [line for chunk in chunks for line in terminal.feed(chunk)]
    return lines + terminal.finish()


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\ntwo", ["one", "", "two"]),
        (b"windows\r\nunix\n", ["windows", "unix"]),
        (b"trailing  \n", ["trailing"]),
        (b"10%\r20%\r100%\n", ["100%"]),
        (b"long line\rshort\n", ["shortline"]),
        (b"long line\r\x1b[Kshort\n", ["short"]),
        (b"long line\x1b[2Kx\n", ["         x"]),
        (b"abc\b\bX\n", ["aXc"]),
        (b"a\b\b\b\bb\n", ["b"]),
        (b"a\tb\n", ["a\tb"]),
        (b"bell\x07 and null\x00\n", ["bell and null"]),
        (b"\x1b[1;32mgreen\x1b[0m\n", ["green"]),
        (b"\x1b[2Aup\n", ["up"]),
        ("größe ━━\n".encode(), ["größe ━━"]),
        (b"bad \xff byte\n", ["bad \ufffd byte"]),
        (
            "x\r5\u00a0MB\u3000\u200d.\n".encode(),
            ["5\u00a0MB\u3000\u200d."],
        ),
    ],
)
def test_shows_what_a_terminal_would(written: bytes, seen: list[str]) -> None:
    assert _draw(written) == seen


@given(
    strategies.text(alphabet="ab \t\r\b\n\x1b[0Km━"),
    strategies.integers(min_value=1, max_value=5),
    strategies.booleans(),
)
def test_chunks_make_no_difference(
    text: str, size: int, keep_colours: bool
) -> None:
    data = text.encode()
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert _draw(*chunks, keep_colours=keep_colours) == _draw(
        data, keep_colours=keep_colours
    )


def test_a_progress_bar_of_keras_arrives_once() -> None:
    # As keras.utils.Progbar writes: back to the start, then the new bar,
    # padded with spaces if it has become shorter.
    bars = ["1/3 ━ 9s 3s/step", "2/3 ━━ 3s 3s/step", "3/3 ━━━ 9s"]
    written = "Epoch 1/1\n"
    width = 0
    for bar in bars:
        written += "\b" * width + "\r" + bar.ljust(width)
        width = len(bar)
    assert _draw((written + "\n").encode()) == ["Epoch 1/1", bars[-1]]


def test_tells_progress_bars_from_unfinished_lines() -> None:
    terminal = TerminalLines(keep_colours=False)
    terminal.feed(b"loading ... ")
    assert not terminal.redrawn
    terminal.feed(b"\r10% ")
    assert terminal.redrawn
    assert terminal.unfinished() == "10% ing ..."
    terminal.feed(b"\n")
    assert not terminal.redrawn
    assert terminal.unfinished() == ""


def test_keeps_colours_and_ends_them() -> None:
    written = b"a\x1b[1m\x1b[32mb\x1b[0mc\x1b[31md\n"
    assert _draw(written, keep_colours=True) == [
        "a\x1b[1m\x1b[32mb\x1b[0mc\x1b[31md\x1b[0m"
    ]


def test_a_colour_goes_on_in_the_next_line() -> None:
    assert _draw(b"\x1b[31ma\nb\x1b[0m\n", keep_colours=True) == [
        "\x1b[31ma\x1b[0m",
        "\x1b[31mb\x1b[0m",
    ]


def test_a_colour_that_never_ends_does_not_grow() -> None:
    lines = _draw(b"\x1b[32mx\x1b[39my\n" * 1000, keep_colours=True)
    assert max(map(len, lines)) < 300


def test_an_endless_line_is_cut() -> None:
    lines = _draw(b"x" * 300_000)
    assert len(lines) > 1
    assert "".join(lines) == "x" * 300_000


def test_a_long_line_of_json_stays_one_however_it_arrives() -> None:
    line = json.dumps({"exception": "x" * 100_000})
    written = f"{line}\n".encode()
    assert _draw(written[:9000], written[9000:70_000], written[70_000:]) == [
        line
    ]
