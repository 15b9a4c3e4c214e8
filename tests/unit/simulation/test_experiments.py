"""The tables as they are defined: names, epsilons, who holds what. To run them takes real data."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.privacy import Level, epsilons
from mpc_vote.simulation.experiment import Experiment
from mpc_vote.simulation.experiments import EXPERIMENTS, find, mnist
from mpc_vote.simulation.experiments import digits as digits_to_usps
from mpc_vote.simulation.experiments.ablations import PAPERS, PAPERS_EPSILON
from mpc_vote.simulation.experiments.mnist_noniid import LOOSE, LOOSE_EPSILON
from mpc_vote.simulation.methods import AeConfig, KnnConfig, QueryConfig
from mpc_vote.simulation.vote import simulated_spec
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT
from mpc_vote.voting.ballots.kind import BallotKind

ALL = [make() for make in EXPERIMENTS.values()]


@pytest.mark.parametrize("experiment", ALL, ids=lambda one: one.name)
def test_every_arm_has_a_name_and_a_setting(experiment: Experiment) -> None:
    assert EXPERIMENTS[experiment.name].__doc__
    found = find(experiment.name)
    assert found is not None and found.title == experiment.title
    names = [arm.name for arm in experiment.arms]
    assert len(set(names)) == len(names)
    assert all(arm.setting or experiment.setting for arm in experiment.arms)
    for arm in experiment.arms:
        if experiment.axis:
            assert arm.line and (arm.value is None) == bool(arm.counted)
        else:
            assert arm.value is None and not arm.counted


@pytest.mark.parametrize("experiment", ALL, ids=lambda one: one.name)
def test_a_line_has_one_point_at_a_place(experiment: Experiment) -> None:
    places = [(arm.panel, arm.line, arm.setting, arm.config) for arm in experiment.arms if arm.line]
    assert len(set(map(repr, places))) == len(places)


def _exact(
    labelling: QueryConfig, delta: float, kind: BallotKind = ONE_HOT, level: Level = Level.AGENT
) -> tuple[float, float]:
    k = 0 if kind is ONE_HOT else 5
    spec = simulated_spec(kind, labelling.queries, 10, {"a": k, "b": k}, labelling.sigma)
    found = epsilons([spec.mechanism], level, delta)
    assert found.exact is not None
    return found.exact, found.simple


@pytest.mark.parametrize(
    ("configs", "kind", "level"),
    [(AeConfig, ONE_HOT, Level.AGENT), (KnnConfig, KNN_COUNT, Level.INSTANCE)],
)
def test_the_noise_of_votes_keeps_the_epsilon_that_the_arm_is_named_for(
    configs: type[Any], kind: BallotKind, level: Level
) -> None:
    claims = {
        (config.labelling, float(said[1]), experiment.delta)
        for experiment in ALL
        if not experiment.name.endswith("-search")
        for arm in experiment.arms
        for said in [re.search(r"epsilon ([0-9.]+)(, student .*)?$", arm.name)]
        for config in [arm.config]
        if said and isinstance(config, configs)
    }
    assert len(claims) > 2
    for labelling, epsilon, delta in claims:
        exact, _ = _exact(labelling, delta, kind, level)
        assert 0.97 * epsilon < exact <= epsilon


@pytest.mark.parametrize(
    ("labelling", "simple", "exact"), [(LOOSE, 4.3, LOOSE_EPSILON), (PAPERS, 5, PAPERS_EPSILON)]
)
def test_the_papers_epsilon_is_kept_by_its_accountant_and_matched_by_the_baselines(
    labelling: QueryConfig, simple: float, exact: float
) -> None:
    found = _exact(labelling, 1e-3)
    assert 0.99 * simple < found[1] <= simple
    # The baselines get what an exact account says of our votes, never less.
    assert found[0] == pytest.approx(exact, rel=1e-3)


def _digits(count: int, side: int, seed: int) -> Dataset:
    draws = np.random.default_rng(seed)
    x = draws.random((count, side, side), dtype=np.float32)
    return Dataset(f"noise-{side}", x, np.arange(count) % 10, 10)


def test_mnist_is_dealt_several_times_where_it_does_not_suffice() -> None:
    data = {"train": _digits(1000, 8, 0), "test": _digits(100, 8, 1)}
    for agents, digits in ((10, 6), (25, None)):
        division = mnist.MnistSetting(agents=agents, size=100, digits=digits, public=30)
        partition = mnist.split(data, division, 3)
        assert [len(part) for part in partition.private] == [100] * agents
        assert (len(partition.public), len(partition.test)) == (30, 70)
        if digits is not None:
            assert all(len(np.unique(part.y)) == digits for part in partition.private)


def test_agents_of_the_digits_hold_one_domain_each(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {
        "mnist": _digits(600, 28, 0),
        "svhn": _digits(300, 32, 1),
        "usps": _digits(400, 16, 2),
    }
    monkeypatch.setattr(digits_to_usps, "MNIST_SIZE", 10)
    monkeypatch.setattr(digits_to_usps, "PUBLIC", 100)
    for frame in (digits_to_usps.DigitsSetting(), digits_to_usps.DigitsSetting(framed=False)):
        partition = digits_to_usps.split(data, frame, 0)
        assert [len(part) for part in partition.private] == [2] * 140 + [10] * 60
        assert {part.shape for part in partition.private} == {(28, 28)}
        assert (len(partition.public), len(partition.test)) == (100, 300)
        assert partition.test.shape == (28, 28)
