"""CrypTen runs on our randomness, preprocessing and channel, or it does not run."""

from __future__ import annotations

import importlib.util
import pickle
import random
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from mpc_vote.argmax.crypten import binding as binding
from mpc_vote.argmax.crypten.engine import CryptenArgmax, MaxMethod
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import Words
from tests.unit.argmax.committee import share

TOTALS = np.array([[3, 1, 4, 1], [5, 9, 2, 6], [-5, -3, -5, -8], [7, 7, 7, 7], [0, 0, 1, 1]])
WINNERS = TOTALS.argmax(axis=1).tolist()
SITE = "crypten.mpc.primitives.binary.generate_kbit_random_tensor"


def labels(method: MaxMethod, shares: Sequence[Words], classes: int = 4) -> list[int]:
    engine = CryptenArgmax(method)

    def program(channel: Channel, preprocessing: Preprocessing) -> Words:
        return engine.run(shares[channel.rank], classes, channel, preprocessing)

    return [int(label) for label in np.add.reduce(run_committee(len(shares), program))]


def original_rng() -> ModuleType:
    """CrypTen's generators as they ship, loaded anew under another name."""
    found = importlib.util.find_spec("crypten.common.rng")
    assert found is not None and found.origin is not None
    spec = importlib.util.spec_from_file_location("crypten_rng_as_shipped", found.origin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestImportSites:
    @pytest.mark.parametrize(
        ("site", "names"),
        [
            ("crypten.mpc.primitives.arithmetic", ["ring"]),
            ("crypten.mpc.primitives.binary", ["kbit"]),
            ("crypten.mpc.provider.tfp_provider", ["ring", "kbit"]),
            ("crypten.mpc.provider.ttp_provider", ["ring", "kbit"]),
        ],
    )
    def test_hold_our_functions(self, site: str, names: list[str]) -> None:
        module = importlib.import_module(site)
        ours = {
            "ring": ("generate_random_ring_element", binding.random_ring_element),
            "kbit": ("generate_kbit_random_tensor", binding.random_kbit_tensor),
        }
        for name in names:
            attribute, function = ours[name]
            assert getattr(module, attribute) is function
        held = {attribute for attribute, _ in ours.values() if hasattr(module, attribute)}
        assert held == {ours[name][0] for name in names}

    def test_are_all_that_there_are(self) -> None:
        """Any loaded module of CrypTen that holds a generator holds ours."""
        names = ("generate_random_ring_element", "generate_kbit_random_tensor")
        ours = (binding.random_ring_element, binding.random_kbit_tensor)
        holders = 0
        for name, module in list(sys.modules.items()):
            if name.startswith("crypten"):
                for attribute in names:
                    if hasattr(module, attribute):
                        holders += 1
                        assert getattr(module, attribute) in ours, f"{name}.{attribute}"
        # Two at the definition, one or two at each of the four sites.
        assert holders >= 8

    def test_the_generator_table_holds_nothing_that_torch_takes(self) -> None:
        tables = binding.crypten.generators
        assert set(tables) >= {"prev", "next", "local", "global"}
        for table in tables.values():
            assert list(table) == [torch.device("cpu")]
            for generator in table.values():
                for draw in (torch.randint, torch.rand):
                    given: tuple[Any, ...] = (2, (3,)) if draw is torch.randint else (3,)
                    with pytest.raises(TypeError):
                        draw(*given, generator=generator)

    def test_a_site_that_was_missed_fails_instead_of_leaking(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shipped = original_rng().generate_kbit_random_tensor
        assert shipped is not binding.random_kbit_tensor
        monkeypatch.setattr(SITE, shipped)
        with pytest.raises(TypeError, match="Mark"):
            labels(MaxMethod.PAIRWISE, share(TOTALS, 2))

    def test_only_the_rings_that_are_meant_are_drawn_from(self) -> None:
        with pytest.raises(NotImplementedError, match="ring of size 10"):
            binding.random_ring_element((2,), ring_size=10)


def forbidden(name: str) -> Callable[..., NoReturn]:
    def raise_(*_: object, **__: object) -> NoReturn:
        raise AssertionError(f"{name} was drawn from")

    return raise_


def poison_generators(patch: pytest.MonkeyPatch) -> None:
    """Makes every generator that is no CSPRNG raise when it is used."""
    for name in (
        *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm"),
        *("bernoulli", "multinomial", "normal", "poisson", "Generator", "manual_seed", "seed"),
    ):
        patch.setattr(torch, name, forbidden(f"torch.{name}"))
    for name in ("random_", "uniform_", "normal_", "bernoulli_", "exponential_", "geometric_"):
        patch.setattr(torch.Tensor, name, forbidden(f"torch.Tensor.{name}"))
    for name in (
        *("rand", "randn", "randint", "random", "random_sample", "bytes", "choice", "normal"),
        *("uniform", "permutation", "shuffle", "seed", "default_rng", "RandomState", "Generator"),
    ):
        patch.setattr(np.random, name, forbidden(f"numpy.random.{name}"))
    for name in (
        *("random", "randint", "randrange", "getrandbits", "randbytes", "choice", "shuffle"),
        *("uniform", "gauss", "sample", "seed", "Random"),
    ):
        patch.setattr(random, name, forbidden(f"random.{name}"))


class TestRandomness:
    @pytest.mark.parametrize("method", MaxMethod)
    def test_no_other_generator_is_ever_asked(
        self, monkeypatch: pytest.MonkeyPatch, method: MaxMethod
    ) -> None:
        with monkeypatch.context() as patch:
            poison_generators(patch)
            draws: list[Any] = [torch.randint, torch.rand, np.random.rand, random.random]
            for draw in draws:
                with pytest.raises(AssertionError, match="was drawn from"):
                    draw(2)
            got = labels(method, share(TOTALS, 3))
        assert got == WINNERS

    def test_the_poison_would_have_caught_what_ships(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shipped = original_rng().generate_kbit_random_tensor
        with monkeypatch.context() as patch:
            poison_generators(patch)
            patch.setattr(SITE, shipped)
            with pytest.raises(AssertionError, match=r"torch\.randint was drawn from"):
                labels(MaxMethod.PAIRWISE, share(TOTALS, 2))

    def test_seeding_every_known_generator_repeats_nothing(self) -> None:
        shares = share(TOTALS, 3)

        def transcript() -> list[bytes]:
            torch.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            sent: list[bytes] = []

            def program(channel: Any, preprocessing: Preprocessing) -> None:
                exchange: Callable[[bytes], Sequence[bytes]] = channel.exchange

                def noted(payload: bytes) -> Sequence[bytes]:
                    if channel.rank == 0:
                        sent.append(payload)
                    return exchange(payload)

                channel.exchange = noted
                CryptenArgmax(MaxMethod.PAIRWISE).run(
                    shares[channel.rank], 4, channel, preprocessing
                )

            run_committee(3, program)
            return sent

        first, second = transcript(), transcript()
        assert [len(p) for p in first] == [len(p) for p in second]
        # Openings of single bits carry one bit per word; all others, 64 uniform ones.
        wide = [i for i, p in enumerate(first) if (np.frombuffer(p, np.uint64) > 1).any()]
        assert len(wide) > len(first) // 2
        for i in wide:
            one, other = (set(np.frombuffer(t[i], np.uint64).tolist()) for t in (first, second))
            assert not one & other

    def test_local_draws_differ_between_parties_and_sessions(self) -> None:
        def program(channel: Channel, preprocessing: Preprocessing) -> list[int]:
            with binding.bound(channel, preprocessing):
                return binding.random_ring_element((20,)).tolist()

        drawn = [word for _ in range(2) for words in run_committee(3, program) for word in words]
        assert len(set(drawn)) == len(drawn) == 120

    def test_bits_of_the_asked_length(self) -> None:
        def program(channel: Channel, preprocessing: Preprocessing) -> list[int]:
            with binding.bound(channel, preprocessing):
                return binding.random_kbit_tensor((200,), bitlength=16).tolist()

        for words in run_committee(2, program):
            # A word is below 2^15 with probability 1/2: all 200 are with probability 2^-200.
            assert 2**15 <= max(words) < 2**16
            assert min(words) >= 0


class TestOutsideOfASession:
    @pytest.mark.parametrize(
        "use",
        [
            lambda: binding.crypten.communicator.get(),
            lambda: binding.crypten.mpc.get_default_provider(),
            lambda: binding.zero_share(1),
            lambda: binding.random_ring_element((1,)),
            lambda: binding.random_kbit_tensor((1,)),
            lambda: binding.crypten.cryptensor(torch.tensor([1])),
            lambda: binding.crypten.mpc.primitives.ArithmeticSharedTensor(torch.tensor([1]), src=0),
            lambda: binding.crypten.mpc.primitives.BinarySharedTensor(torch.tensor([1]), src=0),
        ],
        ids=["comm", "provider", "zero", "ring", "kbit", "cryptensor", "arithmetic", "binary"],
    )
    def test_crypten_refuses_to_work(self, use: Callable[[], object]) -> None:
        with pytest.raises(RuntimeError, match="outside of bound"):
            use()

    def test_a_session_ends_with_its_block_whatever_happens_in_it(self) -> None:
        def program(channel: Channel, preprocessing: Preprocessing) -> None:
            with pytest.raises(ZeroDivisionError), binding.bound(channel, preprocessing):
                raise ZeroDivisionError
            with pytest.raises(RuntimeError, match="outside of bound"):
                binding.zero_share(1)
            with binding.bound(channel, preprocessing):
                binding.zero_share(1)

        run_committee(2, program)

    def test_a_thread_has_one_session_at_a_time(self) -> None:
        def program(channel: Channel, preprocessing: Preprocessing) -> None:
            with binding.bound(channel, preprocessing):
                with (
                    pytest.raises(RuntimeError, match="runs a session already"),
                    binding.bound(channel, preprocessing),
                ):
                    raise AssertionError("two sessions in one thread")
                binding.zero_share(1)

        run_committee(2, program)

    def test_another_thread_has_no_part_in_a_session(self) -> None:
        def program(channel: Channel, preprocessing: Preprocessing) -> str:
            with binding.bound(channel, preprocessing), ThreadPoolExecutor(1) as pool:
                return str(pool.submit(binding.zero_share, 1).exception())

        assert all("outside of bound" in message for message in run_committee(2, program))


class TestThreads:
    def test_two_committees_at_once_do_not_mix(self) -> None:
        jobs = [
            (MaxMethod.PAIRWISE, 2, TOTALS),
            (MaxMethod.LOG_REDUCTION, 3, TOTALS[:, ::-1]),
            (MaxMethod.DOUBLE_LOG_REDUCTION, 2, -TOTALS),
        ]
        ready = threading.Barrier(len(jobs), timeout=30)

        def work(job: tuple[MaxMethod, int, np.ndarray]) -> list[list[int]]:
            method, parties, totals = job
            ready.wait()
            return [labels(method, share(totals, parties)) for _ in range(3)]

        with ThreadPoolExecutor(len(jobs)) as pool:
            results = list(pool.map(work, jobs))
        for (_, _, totals), got in zip(jobs, results, strict=True):
            assert got == [totals.argmax(axis=1).tolist()] * 3

    @pytest.mark.parametrize("method", MaxMethod)
    def test_no_method_changes_what_all_threads_see(self, method: MaxMethod) -> None:
        labels(method, share(TOTALS, 2))
        assert binding.crypten.cfg.functions.max_method == "pairwise"


class TestChannel:
    REFUSED = (
        *("send_obj", "recv_obj", "broadcast_obj"),
        *("send", "recv", "scatter", "gather", "all_gather", "reduce", "broadcast", "barrier"),
    )

    @pytest.mark.parametrize("name", REFUSED)
    def test_all_but_opening_is_refused(self, name: str) -> None:
        arguments = {"recv_obj": 1, "recv": 1, "barrier": 0, "reduce": 1, "all_gather": 1}

        def program(channel: Channel, preprocessing: Preprocessing) -> None:
            communicator: Any = binding.Communicator(channel)
            with pytest.raises(NotImplementedError):
                getattr(communicator, name)(*[torch.ones(1)] * arguments.get(name, 2))
            assert channel.traffic.rounds == 0

        run_committee(2, program)

    def test_nothing_is_pickled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
                patch.setattr(pickle, name, forbidden(f"pickle.{name}"))
            got = labels(MaxMethod.PAIRWISE, share(TOTALS, 2))
        assert got == WINNERS

    def test_no_process_group_is_opened(self) -> None:
        assert labels(MaxMethod.PAIRWISE, share(TOTALS, 2)) == WINNERS
        assert not torch.distributed.is_initialized()
        assert not binding.crypten.communicator.DistributedCommunicator.is_initialized()

    def test_openings_add_or_xor_and_keep_their_shape(self) -> None:
        def program(channel: Channel, preprocessing: Preprocessing) -> list[Any]:
            communicator: Any = binding.Communicator(channel)
            mine = torch.full((2, 3), 5 + channel.rank)
            added = communicator.all_reduce(mine)
            xored = communicator.all_reduce(mine, op=torch.distributed.ReduceOp.BXOR)
            batch = communicator.all_reduce([mine, mine[:1, :1]], batched=True)
            return [added.tolist(), xored.tolist(), [t.tolist() for t in batch], mine.tolist()]

        for rank, (added, xored, batch, mine) in enumerate(run_committee(3, program)):
            assert added == [[18] * 3] * 2
            assert xored == [[5 ^ 6 ^ 7] * 3] * 2
            assert batch == [[[18] * 3] * 2, [[18]]]
            assert mine == [[5 + rank] * 3] * 2

    def test_a_peer_that_fails_ends_the_run_at_once(self) -> None:
        attempts: list[int] = []

        def program(channel: Any, preprocessing: Preprocessing) -> Words:
            def fail(payload: bytes) -> NoReturn:
                attempts.append(channel.rank)
                raise VoteError(ErrorKind.PARTY_UNREACHABLE, who="party/b", why="gone")

            channel.exchange = fail
            return CryptenArgmax(MaxMethod.PAIRWISE).run(
                np.zeros(4, np.uint64), 4, channel, preprocessing
            )

        with pytest.raises(VoteError, match="party/b does not answer"):
            run_committee(2, program)
        assert sorted(attempts) == [0, 1]


class TestPreprocessing:
    def test_what_no_argmax_needs_is_refused(self) -> None:
        def program(channel: Channel, preprocessing: Preprocessing) -> None:
            provider = binding.DealtProvider(preprocessing)
            one, two = torch.Size([1, 2]), torch.Size([2, 1])
            with pytest.raises(NotImplementedError, match="no preprocessing for matmul"):
                provider.generate_additive_triple(one, two, "matmul")
            with pytest.raises(NotImplementedError, match="no preprocessing for mul"):
                provider.generate_additive_triple(one, two, "mul")
            with pytest.raises(NotImplementedError, match="no preprocessing for the conjunction"):
                provider.generate_binary_triple(one, two)
            for name in ("square", "wrap_rng"):
                with pytest.raises(NotImplementedError):
                    getattr(provider, name)(one)

        run_committee(2, program)

    def test_the_provider_of_a_session_is_the_dealers(self) -> None:
        def program(channel: Channel, preprocessing: Preprocessing) -> None:
            with binding.bound(channel, preprocessing):
                assert isinstance(binding.crypten.mpc.get_default_provider(), binding.DealtProvider)

        run_committee(2, program)


def test_modes_that_open_secrets_are_off() -> None:
    assert not binding.crypten.cfg.debug.debug_mode
    assert not binding.crypten.cfg.debug.validation_mode


@pytest.mark.parametrize("mode", ["debug.debug_mode", "debug.validation_mode"])
def test_no_session_is_bound_while_a_mode_opens_secrets(mode: str) -> None:
    def program(channel: Channel, preprocessing: Preprocessing) -> None:
        with binding.bound(channel, preprocessing):
            raise AssertionError("bound")

    with (
        binding.crypten.cfg.temp_override({mode: True}),
        pytest.raises(RuntimeError, match="debug modes open secrets"),
    ):
        run_committee(2, program)
