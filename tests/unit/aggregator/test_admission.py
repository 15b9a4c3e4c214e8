"""AdmissionControl for rounds: a bound that holds, a line that is fair, and nothing that grows."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from aggregator.coordinator.admission import MAX_NAMES, AdmissionControl
from mpc_vote.errors import ErrorKind, VoteError


class Clock:
    """A time that tests move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def told(places: AdmissionControl, client: str) -> VoteError:
    with pytest.raises(VoteError) as caught:
        places.take(client)
    error = caught.value
    assert error.kind is ErrorKind.SERVICE_BUSY
    assert error.retry_after is not None and error.retry_after > 0
    return error


def test_no_more_places_are_given_than_there_are(clock: Clock) -> None:
    """Whoever finds none is told when to come back."""
    places = AdmissionControl(2, clock)
    places.take("a")
    places.take("a")
    told(places, "a")
    told(places, "b")
    places.release()
    places.take("a")
    told(places, "b")


def test_who_was_just_served_does_not_pass_those_that_wait(clock: Clock) -> None:
    """A free place is for whoever stands first, and each client stands in line once."""
    places = AdmissionControl(1, clock)
    places.take("greedy")
    for name in ("first", "second", "first", "greedy"):
        told(places, name)
    places.release()
    told(places, "greedy")
    told(places, "second")
    places.take("first")
    places.release()
    told(places, "greedy")
    places.take("second")
    places.release()
    places.take("greedy")


def test_who_does_not_come_back_loses_its_turn(clock: Clock) -> None:
    """A client that is gone keeps a place empty for seconds, not for ever."""
    places = AdmissionControl(1, clock)
    places.take("a")
    wait = told(places, "gone").retry_after
    assert wait is not None
    places.release()
    told(places, "b")
    clock.now += 1.25 * wait
    told(places, "b")
    clock.now += 10
    places.take("b")


def test_a_client_whose_turn_it_is_has_time_to_upload(clock: Clock) -> None:
    """Its turn does not lapse between the plan and the end of the batch."""
    places = AdmissionControl(1, clock)
    places.take("a")
    told(places, "slow")
    places.release()
    places.check("slow")
    clock.now += 20
    told(places, "quick")
    places.take("slow")


def test_the_hint_grows_with_the_line_and_with_what_rounds_take(clock: Clock) -> None:
    """Those far behind ask less often, and nobody is sent away for long."""
    hints = {}
    for seconds in (1.0, 9.0):
        places = AdmissionControl(2, clock)
        for _ in range(20):
            places.take("a")
            places.release(seconds)
        places.take("a")
        places.take("b")
        hints[seconds] = [told(places, f"c-{number}").retry_after or 0 for number in range(200)]
        assert hints[seconds] == sorted(hints[seconds])
    assert hints[1.0][20] < hints[9.0][20]
    assert hints[9.0][0] < hints[9.0][2] < hints[9.0][-1] == 10


def test_the_line_is_bounded(clock: Clock) -> None:
    """Names beyond the line's length are refused too, and take no memory."""
    places = AdmissionControl(1, clock)
    places.take("a")
    for number in range(2 * MAX_NAMES):
        told(places, f"client-{number}")
    assert told(places, "late").values["waiting_before"] == str(MAX_NAMES)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_starves_when_all_ask_without_end(clock: Clock, seed: int) -> None:
    """Far more clients than places, all at their hints: each is served about as often."""
    rng = random.Random(seed)
    places, served = AdmissionControl(4, clock), Counter[str]()
    clients = [f"client-{number}" for number in range(50)]
    asks = dict.fromkeys(clients, 0.0)
    ends: dict[str, float] = {}
    while clock.now < 2_000:
        client = min(asks, key=lambda name: asks[name])
        done = min(ends, key=lambda name: ends[name], default=None)
        if done is not None and ends[done] <= asks[client]:
            clock.now = max(clock.now, ends.pop(done))
            places.release(6.0)
            # It asks again at once, before anybody else can.
            served[done] += 1
            asks[done] = clock.now
            continue
        clock.now = max(clock.now, asks.pop(client))
        try:
            places.take(client)
            ends[client] = clock.now + rng.uniform(4, 8)
        except VoteError as error:
            asks[client] = clock.now + (error.retry_after or 0) * rng.uniform(1.0, 1.25)
        assert len(ends) <= 4
    assert min(served[name] for name in clients) >= 0.8 * max(served.values())
    # AdmissionControl are not kept empty for long: four of them would serve 1,333 at best.
    assert served.total() > 1_150
