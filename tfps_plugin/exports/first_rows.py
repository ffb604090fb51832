"""First rows of ids, with NumPy: those that parameter servers make.

`variables/dynamic/initial_rows.py` and `variables/dynamic/ids/id_hashing.py` do
the same with TensorFlow, with the constants of this module and in the same
order, so that both are equal to the last bit.
"""

import dataclasses
import functools
import statistics

import numpy as np

CONSTANT = "constant"
UNIFORM = "uniform"
TRUNCATED_NORMAL = "truncated_normal"
DISTRIBUTIONS = (CONSTANT, UNIFORM, "normal", TRUNCATED_NORMAL)

# Of SplitMix64.
GOLDEN = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB
SHIFTS = (30, 27, 31)
# Bits of a random number: with a half added, a float32 holds it exactly.
FRACTION_BITS = 23
_MASK = (1 << 64) - 1

# Normal numbers are interpolated between so many quantiles. Functions of the
# runtime such as a logarithm give other last bits at other places of a tensor.
_NUM_QUANTILES = 4096
# The largest deviation of a normal number: beyond it are 0.02 % of them.
_MOST_DEVIATIONS = 3.7
# As in TensorFlow and Keras.
_TRUNCATED_DEVIATIONS = 2.0

# NumPy alone has no bfloat16. It is exported as float32, of which it has the
# upper half.
_BFLOAT16 = "bfloat16"
DTYPES = (_BFLOAT16, "float16", "float32", "float64")


@dataclasses.dataclass(frozen=True)
class FirstRows:
    """First rows of the ids of a table.

    Attributes:
        distribution: One of `DISTRIBUTIONS`.
        parameters: The constant, twice; lower and upper end; or mean and
            standard deviation.
        seed: Seed of a random distribution.
        dtype: Dtype of the rows on parameter servers, one of `DTYPES`.
    """

    distribution: str
    parameters: tuple[float, float]
    seed: int
    dtype: str

    def of(self, ids_N: np.ndarray, width: int) -> np.ndarray:
        """Returns the first row of each id, in the dtype of exports.

        Args:
            ids_N: Any int64.
            width: Number of columns.
        """
        first, second = self.parameters
        if self.distribution == CONSTANT:
            rows_ND = np.full((len(ids_N), width), first, np.float32)
            return self._rounded(rows_ND)
        drawn_ND = _uniform(ids_N, width, self.seed)
        if self.distribution == UNIFORM:
            factor = np.float32(second - first)
        else:
            drawn_ND = _interpolated(quantiles(self.distribution), drawn_ND)
            factor = np.float32(second)
        return self._rounded(np.float32(first) + factor * drawn_ND)

    def _rounded(self, rows: np.ndarray) -> np.ndarray:
        """Returns float32 as the dtype of the table."""
        if self.dtype != _BFLOAT16:
            # Beyond the largest float16 is infinity, on a ps too.
            with np.errstate(over="ignore"):
                return rows.astype(self.dtype)
        # To the nearest one, and of two that are as near to the even one.
        bits = rows.view(np.uint32)
        is_odd = (bits >> np.uint32(16)) & np.uint32(1)
        bits = bits + np.uint32(0x7FFF) + is_odd
        rounded = (bits & np.uint32(0xFFFF0000)).view(np.float32)
        return np.where(np.isnan(rows), rows, rounded)


def start_of(seed: int) -> np.uint64:
    """Returns what is added to ids before their first hash."""
    return np.uint64((seed * FIRST_FACTOR + SECOND_FACTOR) & _MASK)


def steps_of(num_columns: int) -> np.ndarray:
    """Returns what is added to the hash of an id for each column, uint64."""
    columns = range(1, num_columns + 1)
    return np.array([(each * GOLDEN) & _MASK for each in columns], np.uint64)


@functools.cache
def quantiles(distribution: str) -> np.ndarray:
    """Returns quantiles of a normal distribution that is cut on both sides.

    Args:
        distribution: "normal" or "truncated_normal".
    """
    most_deviations = (
        _TRUNCATED_DEVIATIONS
        if distribution == TRUNCATED_NORMAL
        else _MOST_DEVIATIONS
    )
    normal = statistics.NormalDist()
    low = normal.cdf(-most_deviations)
    shares = np.linspace(low, 1.0 - low, _NUM_QUANTILES)
    return np.array([normal.inv_cdf(share) for share in shares], np.float32)


def _uniform(ids_N: np.ndarray, num_columns: int, seed: int) -> np.ndarray:
    bits_N = _mixed(ids_N.view(np.uint64) + start_of(seed))
    bits_NC = _mixed(bits_N[:, None] + steps_of(num_columns)[None, :])
    whole = (bits_NC >> np.uint64(64 - FRACTION_BITS)).astype(np.float32)
    return (whole + np.float32(0.5)) * np.float32(2.0**-FRACTION_BITS)


def _mixed(bits: np.ndarray) -> np.ndarray:
    first, second, last = (np.uint64(shift) for shift in SHIFTS)
    bits = (bits ^ (bits >> first)) * np.uint64(FIRST_FACTOR)
    bits = (bits ^ (bits >> second)) * np.uint64(SECOND_FACTOR)
    mixed: np.ndarray = bits ^ (bits >> last)
    return mixed


def _interpolated(values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns the values at some shares of the distribution, from 0 to 1."""
    places = shares * np.float32(len(values) - 1)
    below = np.floor(places)
    numbers = below.astype(np.int32)
    steps = np.diff(values)[numbers]
    return values[numbers] + (places - below) * steps
