import pytest

from tfps_plugin.launcher.watching import quantities


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0012, "0.001"),
        (0.5, "0.5"),
        (12.345, "12.3"),
        (999.6, "1,000"),
        (4560.2, "4,560"),
        (7_890_000, "7.89M"),
        (999_400_000, "999M"),
        (999_600_000, "1G"),
        (2.5e9, "2.5G"),
    ],
)
def test_a_number_has_about_three_digits(value: float, text: str) -> None:
    assert quantities.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (512, "512 B"),
        (1500, "1.5 kB"),
        (999_700, "1 MB"),
        (2_400_000, "2.4 MB"),
        (999_600_000, "1 GB"),
        (25.3e9, "25.3 GB"),
    ],
)
def test_a_size_has_a_unit(value: float, text: str) -> None:
    assert quantities.size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.4, "0 s"),
        (59.6, "1 min 0 s"),
        (185, "3 min 5 s"),
        (7380, "2 h 3 min"),
        (363_600, "4 d 5 h"),
    ],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert quantities.duration(seconds) == text


def test_a_share_is_a_percentage() -> None:
    assert quantities.share(0.456) == "46 %"
    assert quantities.share(None) == "-"


def test_a_sparkline_shows_the_latest_values() -> None:
    assert quantities.sparkline([0, 1, 2]) == "▁▅█"
    assert quantities.sparkline([0.0, 0.0]) == "▁▁"
    assert quantities.sparkline([]) == ""
    assert len(quantities.sparkline(range(100))) == 40
