"""Tests of the description of a mismatch."""

from tfps_plugin.recovery.checkpoints import mismatch


def test_no_difference_is_no_text() -> None:
    assert mismatch.describe([], [], []) == ""


def test_every_kind_of_difference_is_listed() -> None:
    text = mismatch.describe(
        ["new"], ["old"], [("table", "float32[4, 2]", "float32[5, 2]")]
    )
    assert text.splitlines() == [
        "With another shape or dtype:",
        "  table: float32[4, 2] in the program, "
        "float32[5, 2] in the checkpoint",
        "In the program, but not in the checkpoint:",
        "  new",
        "In the checkpoint, but not in the program:",
        "  old",
    ]


def test_long_lists_are_cut_and_say_so() -> None:
    text = mismatch.describe([f"v{i}" for i in range(50)], [], [])
    assert text.splitlines()[-1] == "  ... and 30 more"
    assert len(text.splitlines()) == 22


def test_kinds() -> None:
    assert mismatch.kind("float32", (3, 4)) == "float32[3, 4]"
    assert mismatch.kind("int64", ()) == "int64[]"
