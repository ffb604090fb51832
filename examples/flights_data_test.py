"""Tests of flights_data.py, mainly that nothing leaks from the future."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from flights_data import IDS
from flights_data import NUMBERS
from flights_data import Tables
from flights_data import describe_flights
from flights_data import part

_KNOWN_ONLY_LATER = ("dep_time", "dep_delay", "arr_time", "air_time")


def _tables() -> Tables:
    """Returns two flights that arrive, a cancelled one, and one in winter."""
    flights = pd.DataFrame(
        {
            "year": 2013,
            "month": [3, 3, 3, 11],
            "day": [4, 4, 4, 1],
            "dep_time": [1001.0, 1131.0, np.nan, 2355.0],
            "sched_dep_time": [1000, 1030, 1045, 2330],
            "dep_delay": [1.0, 61.0, np.nan, 25.0],
            "arr_time": [1201.0, 1331.0, np.nan, 115.0],
            "sched_arr_time": [1200, 1230, 1245, 100],
            "arr_delay": [15.0, 16.0, np.nan, 15.5],
            "carrier": ["UA", "AA", "UA", "UA"],
            "flight": [1, 1, 2, 3],
            "tailnum": ["N1", "N2", None, "N1"],
            "origin": ["JFK", "JFK", "JFK", "EWR"],
            "dest": ["ORD", "LAX", "ORD", "BOS"],
            "air_time": [100.0, 300.0, np.nan, 40.0],
            "distance": [740, 2475, 740, 200],
            "hour": [10, 10, 10, 23],
            "minute": [0, 30, 45, 30],
            "time_hour": [
                *["2013-03-04T15:00:00Z"] * 3,
                "2013-11-02T03:00:00Z",
            ],
        }
    )
    planes = pd.DataFrame(
        {
            "tailnum": ["N1"],
            "year": [2003.0],
            "model": ["A320"],
            "engines": [2],
            "seats": [180],
        }
    )
    hours = pd.date_range("2013-03-04T06:00:00Z", periods=12, freq="h")
    weather = pd.DataFrame(
        {
            "origin": np.repeat(["EWR", "JFK"], len(hours)),
            "time_hour": np.tile(hours.strftime("%Y-%m-%dT%H:%M:%SZ"), 2),
            "humid": 50.0,
            "wind_dir": 90.0,
            "wind_speed": np.arange(24.0),
            "wind_gust": np.nan,
            "precip": 0.01,
            "pressure": 1000.0,
            "visib": 24.0 - np.arange(24),
        }
    )
    # The order of the file must not matter.
    return Tables(flights, planes, weather.iloc[::-1])


def test_a_flight_without_an_arrival_is_in_no_part() -> None:
    described = describe_flights(_tables())
    assert list(described["flight"]) == ["UA 1", "AA 1", "UA 3"]


def test_late_is_more_than_fifteen_minutes() -> None:
    assert list(describe_flights(_tables())["late"]) == [0.0, 1.0, 1.0]


def test_every_column_is_there_and_no_other() -> None:
    described = describe_flights(_tables())
    assert set(described) == {"month", "late", *IDS, *NUMBERS}


def test_what_is_known_only_later_is_not_even_read() -> None:
    tables = _tables()
    blind = dataclasses.replace(
        tables, flights=tables.flights.drop(columns=list(_KNOWN_ONLY_LATER))
    )
    pd.testing.assert_frame_equal(
        describe_flights(blind), describe_flights(tables)
    )


def test_the_delay_says_nothing_but_late() -> None:
    tables = _tables()
    flights = tables.flights.assign(arr_delay=tables.flights["arr_delay"] + 500)
    late = describe_flights(dataclasses.replace(tables, flights=flights))
    pd.testing.assert_frame_equal(
        late.drop(columns="late"),
        describe_flights(tables).drop(columns="late"),
    )


def test_weather_after_the_hour_of_departure_says_nothing() -> None:
    tables = _tables()
    weather = tables.weather.copy()
    later = weather["time_hour"] > "2013-03-04T15:00:00Z"
    assert later.any()
    weather.loc[later, ["precip", "wind_speed", "visib", "humid"]] = 99.0
    pd.testing.assert_frame_equal(
        describe_flights(dataclasses.replace(tables, weather=weather)),
        describe_flights(tables),
    )


def test_weather_is_that_of_the_airport_and_of_the_last_six_hours() -> None:
    flight = describe_flights(_tables()).iloc[0]
    # Row 9 of the twelve rows of JFK, which follow the twelve rows of EWR.
    assert flight["wind_speed"] == 21
    assert flight["strongest_wind"] == 21
    assert flight["lowest_visibility"] == 3
    assert flight["wind_east"] == pytest.approx(21)
    assert flight["wind_north"] == pytest.approx(0, abs=1e-5)
    assert flight["precipitation"] == pytest.approx(np.log1p(1))
    assert flight["recent_precipitation"] == pytest.approx(np.log1p(6))
    assert flight["gusts"] == 0
    assert flight["weather_is_known"] == 1


def test_an_impossible_wind_is_no_wind_reading() -> None:
    tables = _tables()
    weather = tables.weather.assign(wind_speed=1048.0)
    described = describe_flights(dataclasses.replace(tables, weather=weather))
    assert described["wind_speed"].isna().all()


def test_what_nobody_knows_is_nan_and_said_so() -> None:
    described = describe_flights(_tables())
    assert list(described["plane_is_known"]) == [1, 0, 1]
    assert list(described["plane_model"]) == ["A320", "unknown", "A320"]
    assert list(described["plane_age"].isna()) == [False, True, False]
    assert list(described["weather_is_known"]) == [1, 1, 0]
    assert list(described["humidity"].isna()) == [False, False, True]


def test_the_timetable_counts_flights_that_were_cancelled_later() -> None:
    described = describe_flights(_tables())
    assert list(described["flights_this_hour"]) == [3, 3, 1]


def test_a_flight_over_midnight_has_a_positive_duration() -> None:
    described = describe_flights(_tables())
    assert list(described["scheduled_minutes"]) == [120, 120, 90]


def test_parts_are_months() -> None:
    described = describe_flights(_tables())
    assert list(part(described, "train")["month"]) == [3, 3]
    assert part(described, "validation").empty
    assert list(part(described, "test")["month"]) == [11]
