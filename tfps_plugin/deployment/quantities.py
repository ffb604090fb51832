"""Amounts of memory and of cores, in the notation of Kubernetes."""

import decimal
import re

_MEBIBYTE = 2**20
_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_MEMORY = re.compile(rf"({_NUMBER})([kMGT]|[KMGT]i)?")
_CORES = re.compile(rf"({_NUMBER})(m)?")


def parse_memory(text: str) -> int:
    """Reads an amount of memory, such as `"8Gi"`.

    Args:
        text: A number with one of the units k, M, G, T (powers of 1000), Ki,
            Mi, Gi and Ti (powers of 1024), or of bytes.

    Returns:
        The number of bytes, at least one mebibyte.

    Raises:
        ValueError: If it is no such amount, or less.
    """
    match = _MEMORY.fullmatch(text)
    num_bytes = (
        int(decimal.Decimal(match[1]) * _UNITS[match[2] or ""]) if match else 0
    )
    if num_bytes < _MEBIBYTE:
        raise ValueError(
            "Expected an amount of memory of at least 1Mi, such as 8Gi or "
            f"512Mi. Received: {text!r}"
        )
    return num_bytes


def parse_cores(text: str) -> int:
    """Reads a number of cores, such as `"4"`, `"0.5"` or `"500m"`.

    Args:
        text: The number, or that of thousandths with an m.

    Returns:
        The number of thousandths of a core, at least one.

    Raises:
        ValueError: If it is no such number.
    """
    match = _CORES.fullmatch(text)
    millicores = 0
    if match:
        factor = 1 if match[2] else 1000
        millicores = int(decimal.Decimal(match[1]) * factor)
    if millicores < 1:
        raise ValueError(
            "Expected a number of cores, such as 4, 0.5 or 500m. Received: "
            f"{text!r}"
        )
    return millicores


def memory_text(num_bytes: int) -> str:
    """Returns an amount of memory for Kubernetes: `"8Gi"`."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if num_bytes % _UNITS[unit] == 0:
            return f"{num_bytes // _UNITS[unit]}{unit}"
    return str(num_bytes)


def cores_text(millicores: int) -> str:
    """Returns a number of cores for Kubernetes: `"4"` or `"500m"`."""
    if millicores % 1000 == 0:
        return str(millicores // 1000)
    return f"{millicores}m"


def whole_mebibytes(num_bytes: int) -> int:
    """Returns an amount of memory in mebibytes, rounded up."""
    return -(-num_bytes // _MEBIBYTE)


def whole_cores(millicores: int) -> int:
    """Returns a number of cores, rounded up."""
    return -(-millicores // 1000)
