import os
import pathlib

from tfps_plugin.cluster.serving import job_pipe


def test_the_pipe_tells_of_its_other_end() -> None:
    ours, its = os.pipe()
    try:
        assert job_pipe.find({job_pipe.VARIABLE: str(ours)}) == ours
        assert not job_pipe.is_closed(ours)
        os.close(its)
        assert job_pipe.is_closed(ours)
    finally:
        os.close(ours)


def test_who_has_only_inherited_the_variable_has_no_pipe(
    tmp_path: pathlib.Path,
) -> None:
    with open(tmp_path / "file", "w") as file:
        for text in ("", "nothing", "987654", str(file.fileno())):
            assert job_pipe.find({job_pipe.VARIABLE: text}) is None
    assert job_pipe.find({}) is None
