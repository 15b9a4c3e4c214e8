"""A log that hours of the same do not fill."""

from __future__ import annotations

from agent_node.repeats import Repeats


def said(sentence: str, seconds: int, repeats: Repeats, clock: list[float]) -> int:
    """How often it is said in so many seconds, tried every second."""
    times = 0
    for _ in range(seconds):
        times += repeats.due(sentence)
        clock[0] += 1
    return times


def test_the_same_is_said_at_once_and_then_ever_more_rarely() -> None:
    clock = [1_000.0]
    repeats = Repeats(lambda: clock[0])
    assert said("no", 60, repeats, clock) == 1
    assert said("no", 120, repeats, clock) == 1
    assert said("no", 86_400, repeats, clock) <= 30, "but at least once in an hour"
    assert said("no", 3_600, repeats, clock) == 1


def test_what_changes_or_comes_back_is_said_at_once() -> None:
    clock = [0.0]
    repeats = Repeats(lambda: clock[0])
    assert repeats.due("no") and not repeats.due("no")
    assert repeats.due("never") and repeats.due("no")
    repeats.forget()
    assert repeats.due("no")
