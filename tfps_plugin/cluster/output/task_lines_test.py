import pytest

from tfps_plugin.cluster.output import json_lines
from tfps_plugin.cluster.output.task_lines import TaskLines

_NEWS = "2026-01-31 10:11:12 INFO worker 0 serves at 127.0.0.1:1."
_TROUBLE = "2026-01-31 10:11:12 WARNING the chief does not answer."
_START = (
    "WARNING: All log messages before absl::InitializeLog() is called are "
    "written to STDERR"
)
_REMOVED = (
    "E0000 00:00:1795658268.596476   10966 context.cc:690] Failed to remove "
    "function remotely due to Connection refused"
)


def test_what_a_step_prints_and_trouble_are_shown() -> None:
    lines = TaskLines("2").sort(["loss 1", _NEWS, _TROUBLE, _START, _REMOVED])
    assert lines.shown == ["loss 1", _TROUBLE]
    assert lines.kept == [_NEWS, _START, _REMOVED]


def test_news_may_be_json() -> None:
    news = json_lines.entry("INFO", "tfps_plugin.cluster", "ps 0", "serves")
    trouble = json_lines.entry("ERROR", "tfps_plugin.cluster", "ps 0", "oh")
    lines = TaskLines("2").sort([news, trouble])
    assert (lines.shown, lines.kept) == ([trouble], [news])


def test_who_asks_tensorflow_for_more_gets_it() -> None:
    lines = TaskLines("0").sort([_START, _REMOVED, _NEWS])
    assert lines.shown == [_START, _REMOVED]


def test_a_dump_of_options_is_kept_to_its_end() -> None:
    dump = [
        "I0000 00:00:1795658268.596476   10966 eager_service_impl.cc:386] "
        "SessionOptions: device_count {",
        '  key: "GPU"',
        "}",
        "",
        "mine: 3",
    ]
    lines = TaskLines("2")
    # Also if the lines arrive one by one.
    shown = [each for line in dump for each in lines.sort([line]).shown]
    assert shown == ["mine: 3"]


@pytest.mark.parametrize(
    "words", ["terminated by SIGTERM.", "the process that began this is gone."]
)
def test_last_words_are_kept(words: str) -> None:
    assert not TaskLines("2").sort([f"tfps_plugin: {words}"]).shown
