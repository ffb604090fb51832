"""Arrays in files of NumPy's formats, with checksums."""

import hashlib
import io
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfps_plugin import errors
from tfps_plugin.exports.manifest import StoredFile


class ArrayWriter:
    """Writes an array to a file of format npy, some rows at a time.

    Threading: for one thread only.
    """

    def __init__(
        self, path: pathlib.Path, shape: tuple[int, ...], dtype: np.dtype
    ) -> None:
        """Creates the file and writes its header.

        Args:
            path: The file, which must not exist.
            shape: Shape of the whole array.
            dtype: Dtype of the array, one that every NumPy has.
        """
        self._path = path
        self._shape = shape
        self._dtype = dtype
        self._num_rows = 0
        self._hash = hashlib.sha256()
        self._file = path.open("xb")
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header,
            {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": shape,
            },
        )
        self._write(header.getvalue())

    def append(self, rows: np.ndarray) -> None:
        """Writes the next rows."""
        rows = np.ascontiguousarray(rows, self._dtype)
        self._num_rows += len(rows)
        self._write(rows.tobytes() if rows.size == 0 else rows.data.cast("B"))

    def finish(self) -> StoredFile:
        """Closes the file, once it is on the disk.

        Returns:
            Its description.

        Raises:
            ValueError: If it has another number of rows than promised.
        """
        if self._num_rows != self._shape[0]:
            self.close()
            raise ValueError(
                f"{self._path} must get {self._shape[0]} rows. Received: "
                f"{self._num_rows}"
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        num_bytes = self._file.tell()
        self.close()
        return StoredFile(self._path.name, num_bytes, self._hash.hexdigest())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, data: Any) -> None:
        self._file.write(data)
        self._hash.update(data)


def write_archive(
    path: pathlib.Path, arrays: Mapping[str, np.ndarray]
) -> StoredFile:
    """Writes arrays to one file of format npz.

    Args:
        path: The file, which must not exist.
        arrays: Arrays by name.
    """
    data = _packed(arrays)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return StoredFile(path.name, len(data), hashlib.sha256(data).hexdigest())


def archive_checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns the checksum of the file that `write_archive` would write.

    Args:
        arrays: Arrays by name.
    """
    return hashlib.sha256(_packed(arrays)).hexdigest()


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns arrays in format npz; equal ones are equal bytes."""
    packed = io.BytesIO()
    # As `np.savez`, which takes names as keywords: some would be arguments.
    with zipfile.ZipFile(packed, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return packed.getvalue()


def read_array(folder: pathlib.Path, stored: StoredFile) -> np.ndarray:
    """Reads an array, and verifies it.

    Args:
        folder: Folder of the file.
        stored: Description of the file.

    Returns:
        The array, which cannot be changed.

    Raises:
        ExportUnreadableError: If the file is not what was written.
        FileNotFoundError: If there is no such file.
    """
    data = _verified(folder, stored)
    header = io.BytesIO(data)
    np.lib.format.read_magic(header)
    shape, _, dtype = np.lib.format.read_array_header_1_0(header)
    flat = np.frombuffer(data, dtype, offset=header.tell())
    return flat.reshape(shape)


def read_archive(
    folder: pathlib.Path, stored: StoredFile
) -> dict[str, np.ndarray]:
    """Reads the arrays of a file of format npz, and verifies it.

    Args:
        folder: Folder of the file.
        stored: Description of the file.

    Raises:
        ExportUnreadableError: If the file is not what was written.
        FileNotFoundError: If there is no such file.
    """
    packed = io.BytesIO(_verified(folder, stored))
    with np.load(packed, allow_pickle=False) as archive:
        arrays = dict(archive)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _verified(folder: pathlib.Path, stored: StoredFile) -> bytes:
    path = folder / stored.name
    data = path.read_bytes()
    if (
        len(data) != stored.num_bytes
        or hashlib.sha256(data).hexdigest() != stored.sha256
    ):
        raise errors.ExportUnreadableError(
            f"The file {path} of an export is damaged. Expected: "
            f"{stored.num_bytes} bytes with the SHA-256 checksum "
            f"{stored.sha256}. Received: {len(data)} bytes with another one. "
            "Copy it again, or remove the export folder: the next export then "
            "writes whole tables."
        )
    return data
