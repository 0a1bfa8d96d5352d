"""Means and differences with confidence intervals, against numpy and against published quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from store.runtime.statistics import Sample, mean_interval, t_quantile, welch

# Of scipy.stats.t.ppf(0.975, degrees).
QUANTILES = {
    1: 12.706204736432095,
    2: 4.302652729911275,
    3: 3.182446305284263,
    4: 2.7764451051977987,
    5: 2.570581835636314,
    10: 2.2281388519649385,
    11: 2.200985160082949,
    30: 2.042272456301238,
    100: 1.9839715184496334,
    200: 1.9718962236316089,
    1000: 1.9623390808264078,
}


def test_quantiles_of_t_are_those_of_scipy() -> None:
    assert {degrees: t_quantile(degrees) for degrees in QUANTILES} == pytest.approx(QUANTILES, rel=1e-9)


def test_quantile_between_whole_degrees_has_the_probability_that_integration_gives() -> None:
    for degrees in (1.5, 2.5, 7.3, 63.25):
        t = np.linspace(0, t_quantile(degrees), 200_001)
        constant = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(degrees * math.pi)
        assert np.trapezoid(constant * (1 + t * t / degrees) ** (-(degrees + 1) / 2), t) == pytest.approx(0.475)
    assert t_quantile(0) == math.inf


def test_interval_of_a_mean_is_that_of_numpy() -> None:
    values = [0.5, 0.25, 1.0, -0.125, 0.0]
    interval = mean_interval(Sample.of(values))
    assert interval is not None
    margin = QUANTILES[4] * np.std(values, ddof=1) / math.sqrt(5)
    assert (interval.value, interval.margin, interval.degrees) == pytest.approx((np.mean(values), margin, 4))


def test_interval_of_a_difference_of_samples_with_unequal_variances_is_that_of_welch() -> None:
    dice = np.random.default_rng(1)
    a, b = dice.normal(0.5, 0.1, 9), dice.normal(0.7, 0.4, 23)
    interval = welch(Sample.of(list(a)), Sample.of(list(b)))
    assert interval is not None
    one, other = a.var(ddof=1) / a.size, b.var(ddof=1) / b.size
    degrees = (one + other) ** 2 / (one**2 / (a.size - 1) + other**2 / (b.size - 1))
    expected = (b.mean() - a.mean(), t_quantile(degrees) * math.sqrt(one + other), degrees)
    assert (interval.value, interval.margin, interval.degrees) == pytest.approx(expected)


def test_too_few_equal_and_huge_values_give_no_wrong_interval() -> None:
    empty, one, two, equal = (Sample.of(values) for values in ([], [1.0], [1.0, 2.0], [3.0, 3.0]))
    assert (mean_interval(empty), welch(empty, two)) == (None, None)
    alone, against_one, certain = mean_interval(one), welch(one, two), welch(equal, equal)
    assert alone is not None
    assert against_one is not None
    assert certain is not None
    assert (alone.value, alone.margin) == (1.0, None)
    assert (against_one.value, against_one.margin) == (0.5, None)
    assert (certain.value, certain.margin) == (0.0, 0.0)
    huge = welch(Sample.of([1.7e308, 1.7e308, -1.7e308]), Sample.of([1e308, 1e308]))
    assert huge is not None
    assert huge.margin is None or math.isfinite(huge.margin)
