"""Rates from counts, and the model's inputs from commits."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.stats import chi2

from spark_cec.tuning import Commit, ModelInputError, commit_figures, failure_rate
from spark_cec.tuning.estimate import PRIOR_MEDIAN_PER_S, mean_seconds

DAY = 86400.0


@pytest.mark.parametrize("failures", [5, 17, 400])
def test_many_failures_give_the_exact_poisson_interval(failures: int) -> None:
    rate = failure_rate(failures, 10 * DAY)
    assert not rate.prior
    assert rate.per_s == failures / (10 * DAY)
    assert rate.low_per_s * 10 * DAY == pytest.approx(chi2.ppf(0.025, 2 * failures) / 2)
    assert rate.high_per_s * 10 * DAY == pytest.approx(chi2.ppf(0.975, 2 * failures + 2) / 2)


def test_nothing_seen_is_the_prior() -> None:
    rate = failure_rate(0, 0.0)
    assert rate.prior
    assert rate.per_s == pytest.approx(PRIOR_MEDIAN_PER_S, rel=0.01)
    assert rate.low_per_s * rate.high_per_s == pytest.approx(PRIOR_MEDIAN_PER_S**2, rel=0.02)
    # 2.5 % quantile of Student's t with 3 degrees of freedom: 3.182 scales, each a factor of 10.
    assert rate.high_per_s / rate.per_s == pytest.approx(10**3.182, rel=0.02)


def test_the_posterior_quantiles_are_those_of_a_posterior_sample() -> None:
    rng = np.random.default_rng(5)
    log_rate = np.log(PRIOR_MEDIAN_PER_S) + np.log(10.0) * rng.standard_t(3, 2_000_000)
    exposure = np.exp(np.minimum(log_rate, 50.0)) * 3 * DAY
    weight = exposure**2 * np.exp(-exposure)
    order = np.argsort(log_rate)
    mass = np.cumsum(weight[order]) / weight.sum()
    low, middle, high = (float(np.exp(log_rate[order][np.searchsorted(mass, level)])) for level in (0.025, 0.5, 0.975))
    rate = failure_rate(2, 3 * DAY)
    assert (rate.low_per_s, rate.per_s, rate.high_per_s) == pytest.approx((low, middle, high), rel=0.03)


def test_a_long_quiet_watch_lowers_the_rate_and_a_short_stormy_one_outvotes_the_prior() -> None:
    assert failure_rate(0, 365 * DAY).high_per_s < 4 / (365 * DAY)
    assert failure_rate(0, 3600.0).per_s <= PRIOR_MEDIAN_PER_S
    stormy = failure_rate(3, 120.0)
    assert 1.5 / 120 < stormy.per_s < 3 / 120


@pytest.mark.parametrize("failures", [0, 1, 2, 3, 4])
def test_more_failures_mean_a_higher_rate(failures: int) -> None:
    fewer, more = failure_rate(failures, DAY), failure_rate(failures + 1, DAY)
    assert fewer.low_per_s < fewer.per_s < fewer.high_per_s
    assert fewer.per_s < more.per_s


@pytest.mark.parametrize(
    ("failures", "observed", "name"), [(-1, 1.0, "failures"), (1, 0.0, "observed_s"), (0, -1.0, "observed_s")]
)
def test_impossible_counts_are_named(failures: int, observed: float, name: str) -> None:
    with pytest.raises(ModelInputError) as caught:
        failure_rate(failures, observed)
    assert caught.value.name == name


def test_means() -> None:
    assert mean_seconds("c", iter([1.0, 2.0, 6.0])) == 3.0
    with pytest.raises(ModelInputError, match="at least one"):
        mean_seconds("c", [])
    with pytest.raises(ModelInputError, match="c=-1"):
        mean_seconds("c", [2.0, -1.0])


def commits(versions: list[int]) -> list[Commit]:
    """Two operators of two partitions: version v begins at 10 v; the second operator commits 0.5 s after the first."""
    found = [
        Commit(v, operator, partition, 10 * v + operator / 2 + partition / 10, 0.2 + operator / 10 + partition / 20)
        for v in versions
        for operator in (0, 1)
        for partition in (0, 1)
    ]
    random.Random(3).shuffle(found)
    return found


def test_commits_tell_cost_depth_delay_and_interval() -> None:
    figures = commit_figures(commits([3, 4, 5, 6]))
    assert figures.checkpoint_s == pytest.approx((0.25 + 0.35) / 2)
    assert figures.operators == 2
    assert figures.delay_s == pytest.approx(0.5)
    assert figures.interval_s == pytest.approx(10.0)


def test_a_stop_is_not_an_interval_and_neither_is_a_missing_version() -> None:
    late = [Commit(c.version, c.operator, c.partition, c.wall_unix_s + 5000.0, c.seconds) for c in commits([6, 7, 8])]
    assert commit_figures(commits([3, 4, 5]) + late).interval_s == pytest.approx(10.0)
    assert commit_figures(commits([3, 5, 7, 8])).interval_s == pytest.approx(10.0)
    assert commit_figures(commits([3, 5])).interval_s is None


def test_a_version_that_lacks_an_operator_says_nothing_of_the_delay() -> None:
    half = [commit for commit in commits([9]) if commit.operator == 0]
    assert commit_figures(commits([3]) + half).delay_s == pytest.approx(0.5)
    assert commit_figures(half).delay_s == 0.0
    assert commit_figures(half).operators == 1


def test_no_commits_is_an_error() -> None:
    with pytest.raises(ModelInputError, match="commits"):
        commit_figures([])
