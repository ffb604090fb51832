"""Tests of samples of test matrices."""

import dataclasses

import sampling
from sampling import Listed

_CASES = {"one": list(range(50)), "other": list(range(50))}
_COUNTS = {"one": 5, "other": 60}


def test_a_sample_has_as_many_cases_as_asked_for() -> None:
    drawn = sampling.sample(_CASES, _COUNTS, 7)
    assert len(drawn) == 5 + 50


def test_another_seed_draws_others() -> None:
    one, again, other = (
        sampling.sample({"one": _CASES["one"]}, _COUNTS, seed)
        for seed in (1, 1, 2)
    )
    assert one == again != other


def test_a_sample_does_not_depend_on_other_functions() -> None:
    alone = sampling.sample({"one": _CASES["one"]}, _COUNTS, 3)
    assert sampling.sample(_CASES, _COUNTS, 3)[:5] == alone


def test_a_share_has_some_of_every_file() -> None:
    tests = {"long": list(range(50)), "short": [50], "empty": []}
    drawn = sampling.share(tests, 0.3, 7)
    assert len(drawn) == len(set(drawn)) == 15 + 1
    assert 50 in drawn
    assert sampling.share(tests, 0.3, 7) == drawn


def test_every_test_is_in_some_share() -> None:
    tests = {"one": list(range(20))}
    drawn = {
        test for seed in range(50) for test in sampling.share(tests, 0.3, seed)
    }
    assert drawn == set(tests["one"])


def test_a_share_of_the_files() -> None:
    names = [f"{number}_test.py" for number in range(10)]
    drawn = sampling.few(names, 0.4, 7)
    assert len(drawn) == 4
    assert drawn == sampling.few(names[::-1], 0.4, 7)
    ever = {
        name for seed in range(50) for name in sampling.few(names, 0.4, seed)
    }
    assert ever == {*names}
    assert sampling.few([], 0.4, 7) == set()


def _left_out(tests: list[Listed], seed: int, files: float = 0.3) -> set[int]:
    return sampling.left_out(
        tests, seed, share_of_files=files, share_of_tests=0.1
    )


def test_tests_that_every_sample_has_are_never_left_out() -> None:
    """Neither by their files nor by their numbers of cases."""
    tests = [
        Listed(f"{n % 9}.py", f"f{n % 9}", cases=1 if n % 2 else None)
        for n in range(90)
    ]
    always = [dataclasses.replace(each, is_always=True) for each in tests]
    for seed in range(20):
        out = _left_out(tests + always, seed)
        # The others are drawn as if these were not there.
        assert out == _left_out(tests, seed)
        assert max(out) < len(tests)
        assert len(out) > len(tests) / 2


def test_a_sample_has_cases_by_their_number_and_others_by_share() -> None:
    tests = [Listed(None, "matrix", 4) for _ in range(20)]
    tests += [Listed("a.py", "f") for _ in range(20)]
    tests += [Listed("b.py", "g") for _ in range(20)]
    # Unit tests, without a file or a number.
    tests += [Listed() for _ in range(5)]
    out = _left_out(tests, 7, files=1.0)
    assert [len(out & {*range(at, at + 20)}) for at in (0, 20, 40)] == [
        *(16, 18, 18)
    ]
    assert len(out) == 16 + 18 + 18
    out = _left_out(tests, 7, files=0.5)
    assert len(out) == 16 + 18 + 20
