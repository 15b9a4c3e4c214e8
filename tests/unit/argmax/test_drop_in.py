"""`secure_argmax` in place of CrypTen's: in a session of ours, and in a plain CrypTen process.

`test_switch.py` has the rest of what plain CrypTen processes can do.
"""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest
import torch

from mpc_vote.argmax import argmax_plan, drop_in, integer_tensor, secure_argmax
from mpc_vote.argmax.crypten import binding as binding
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Item, Preprocessing
from mpc_vote.mpc.prg import SeedStream, new_seed
from tests.unit.argmax.plain_crypten import outputs

# Runs in a process of its own, since this one has CrypTen bound to our sessions.
PLAIN = """
import json, sys
import torch
from mpc_vote.compat import import_crypten
crypten = import_crypten()
crypten.init()
torch.set_num_threads(1)
from mpc_vote.argmax import integer_tensor, secure_argmax
from mpc_vote.argmax.drop_in import _BINDING
values = torch.tensor(json.loads(sys.argv[1]))
x = integer_tensor(values, src=0)
seen = []
for dim in (None, 0, 1, 2, -1):
    for one_hot in (True, False):
        for keepdim in (True, False):
            given = dict(dim=dim, keepdim=keepdim, one_hot=one_hot)
            ours = secure_argmax(x, **given)
            seen.append([given, ours.get_plain_text().tolist(), list(ours.shape),
                         list(x.argmax(**given).shape)])
try:
    secure_argmax(crypten.cryptensor(torch.tensor([1, 20000])), dim=0)
except ValueError as error:
    seen.append([str(error), _BINDING in sys.modules])
print(json.dumps(seen))
"""


def expected(values: np.ndarray, dim: int | None, keepdim: bool, one_hot: bool) -> np.ndarray:
    if not one_hot:
        found: np.ndarray = np.argmax(values, axis=dim, keepdims=keepdim and dim is not None)
        return found
    hot = np.zeros_like(values)
    if dim is None:
        hot.reshape(-1)[values.argmax()] = 1
    else:
        np.put_along_axis(hot, np.argmax(values, axis=dim, keepdims=True), 1, axis=dim)
    return hot


@pytest.mark.parametrize("parties", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_any_crypten_process_can_call_it(parties: int) -> None:
    values = np.random.default_rng(5).integers(-3, 4, size=(4, 3, 5))
    for output in outputs(PLAIN, parties, json.dumps(values.tolist())):
        *cases, refusal = json.loads(output)
        assert len(cases) == 20
        for given, got, shape, stock_shape in cases:
            want = expected(values, **given)
            assert shape == stock_shape == list(want.shape), given
            assert np.array_equal(np.array(got), want), given
        assert "in fixed point: state its range with bound" in refusal[0]
        assert refusal[1] is False


def in_session(values: torch.Tensor, parties: int, **given: Any) -> tuple[torch.Tensor, int]:
    flat = values.reshape(-1).numpy().view(np.uint64)
    masks = [SeedStream(new_seed()).words(flat.size) for _ in range(parties - 1)]
    shares = [*masks, flat - np.add.reduce(masks)]

    def program(channel: Channel, preprocessing: Preprocessing) -> tuple[torch.Tensor, int]:
        with binding.bound(channel, preprocessing):
            x = binding.shared(shares[channel.rank], values.shape)
            result = secure_argmax(x, **given)
            rounds = channel.traffic.rounds
            return result.get_plain_text(), rounds

    return run_committee(parties, program)[0]


@pytest.mark.parametrize("parties", [2, 3])
def test_in_a_session_it_takes_three_rounds_and_one_more_for_one_hot(parties: int) -> None:
    values = torch.tensor([[3, 9, 4], [-1, -1, -1], [7, -8, 7]])
    index, rounds = in_session(values, parties, dim=1, one_hot=False)
    assert (index.tolist(), rounds) == ([1, 0, 0], 3)
    hot, rounds = in_session(values, parties, dim=1)
    assert (hot.tolist(), rounds) == ([[0, 1, 0], [1, 0, 0], [1, 0, 0]], 4)


@pytest.mark.parametrize("bound", [7, 1 << 20, None])
def test_values_up_to_the_bound_are_compared_right(bound: int | None) -> None:
    top = bound or (1 << 29) - 1
    values = torch.tensor([[-top, top, 0], [top, -top, top - 1], [-top, 1 - top, -top]])
    index, _ = in_session(values, 2, dim=1, one_hot=False, bound=bound)
    assert index.tolist() == [1, 0, 1]


@pytest.mark.parametrize("bound", [0, -1, float("nan"), float("inf"), "7", True])
def test_a_bound_that_is_none_is_refused(bound: Any) -> None:
    with pytest.raises(ValueError, match="the bound of a tensor's values is a positive number"):
        in_session(torch.tensor([[1, 2]]), 2, dim=1, bound=bound)


def test_a_bound_beyond_the_tables_range_is_refused() -> None:
    with pytest.raises(ValueError, match="the bound may be 536870911 here"):
        in_session(torch.tensor([[1, 2]]), 2, dim=1, bound=1 << 29)


def test_a_row_of_more_elements_than_are_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="the largest of 1001 elements is wanted, and 1000"):
        in_session(torch.zeros(2, 1001, dtype=torch.long), 2, dim=1)


def test_many_rows_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drop_in, "MAX_ROTATED", 12)  # three rows of four
    values = torch.tensor(np.random.default_rng(2).integers(-9, 9, size=(8, 4)))
    hot, rounds = in_session(values, 2, dim=1)
    assert hot.argmax(dim=1).tolist() == np.argmax(values.numpy(), axis=1).tolist()
    assert (hot.sum().item(), rounds) == (8, 3 * 4)
    assert len(argmax_plan(8, 4, 2)) == 3 * 2


def test_one_element_needs_nobody() -> None:
    index, rounds = in_session(torch.tensor([[5], [6]]), 2, dim=1, one_hot=False)
    assert (index.tolist(), rounds) == ([0, 0], 0)
    hot, rounds = in_session(torch.tensor([[5], [6]]), 2, dim=1)
    assert (hot.tolist(), rounds) == ([[1], [1]], 0)


def test_the_plan_is_what_it_takes() -> None:
    taken: list[Item[Any]] = []

    def program(channel: Channel, preprocessing: Preprocessing) -> None:
        take = preprocessing.take

        def noted(item: Item[Any]) -> Any:
            if channel.rank == 0:
                taken.append(item)
            return take(item)

        cast(Any, preprocessing).take = noted
        with binding.bound(channel, preprocessing):
            secure_argmax(binding.shared(np.zeros(60, np.uint64), (5, 12)), dim=1)

    run_committee(2, program)
    assert taken == argmax_plan(5, 12, 2)


@pytest.mark.parametrize("value", [1 << 29, -(1 << 29)])
def test_values_out_of_range_are_refused_before_they_are_shared(value: int) -> None:
    with pytest.raises(ValueError, match="exceeds 536870911"):
        integer_tensor(torch.tensor([0, value]))


@pytest.mark.parametrize("values", [torch.tensor([0.5]), torch.tensor([True])])
def test_values_that_are_no_integers_are_refused(values: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="integers are wanted"):
        integer_tensor(values)


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="a torch tensor is wanted, not a list"):
        integer_tensor([1, 2])
    with pytest.raises(ValueError, match="an MPCTensor is wanted, not a Tensor"):
        secure_argmax(torch.tensor([1, 2]))


def test_an_empty_tensor_is_refused() -> None:
    def program(channel: Channel, preprocessing: Preprocessing) -> None:
        with (
            binding.bound(channel, preprocessing),
            pytest.raises(ValueError, match="no largest element"),
        ):
            secure_argmax(binding.shared(np.zeros(0, np.uint64), (0, 3)), dim=1)

    run_committee(2, program)


def test_outside_of_a_session_nothing_is_computed() -> None:
    with pytest.raises(RuntimeError, match="outside of bound"):
        integer_tensor(torch.tensor([1, 2]))
