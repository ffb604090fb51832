"""Figures of many trainings."""

import statistics
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from .problem import Problem
from .training import Course
from .training import Setting


def table(problem: Problem, found: Mapping[Setting, Sequence[Course]]) -> str:
    """Returns medians and ranges over repetitions, a row for each setting."""
    best = max if problem.higher_is_better else min
    lines = [
        f"### {problem.name}",
        "",
        f"{len(problem.train):,} rows, batches of {problem.batch}, "
        f"{problem.epochs} epochs of {problem.steps} steps",
        "",
        f"| sparse_update, calls in flight | {problem.metric}, last epoch "
        f"| best epoch | train loss of each epoch | rises "
        "| s an epoch | calls found |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, courses in found.items():
        losses = [
            f"{statistics.median(values):.3f}"
            for values in zip(*(one.losses for one in courses), strict=True)
        ]
        rises = sum(
            later > earlier
            for one in courses
            for earlier, later in zip(one.losses, one.losses[1:], strict=False)
        )
        calls = sorted(number for one in courses for number in one.calls)
        lines.append(
            f"| {setting} "
            f"| {_of(courses, lambda one: one.scores[-1], 4)} "
            f"| {_of(courses, lambda one: best(one.scores), 4)} "
            f"| {' '.join(losses)} | {rises} "
            f"| {_of(courses, _seconds, 2)} "
            f"| {' '.join(map(str, calls)) or '-'} |"
        )
    return "\n".join(lines)


def _seconds(course: Course) -> float:
    """Returns the seconds of an epoch, without the first one, which traces."""
    return statistics.median(course.seconds[1:])


def _of(
    courses: Sequence[Course], figure: Callable[[Course], float], digits: int
) -> str:
    values = [figure(one) for one in courses]
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"
