"""`python -m tests.security.fuzz --inputs 1000000 --seed 1`: many inputs for all that reads any."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.security.fuzz.runner import Result, Target, Watched, keep
from tests.security.fuzz.targets import TARGETS, shares

_NEWS_SECONDS = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="beside those of the corpus")
    parser.add_argument("--seed", type=int, default=1, help="other inputs for another seed")
    parser.add_argument("--jobs", type=int, default=1, help="targets that run at the same time")
    parser.add_argument("--targets", default="", help="names, with commas; all if left out")
    parser.add_argument("--keep", action="store_true", help="keep inputs that did something new")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = [name for name in given.targets.split(",") if name]
    if unknown := set(names) - {target.name for target in TARGETS}:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    chosen = [target for target in TARGETS if not names or target.name in names]
    waiting = shares(chosen, given.inputs)
    running: list[Watched] = []
    done, bad, told = 0, 0, time.monotonic()
    while waiting or running:
        while waiting and len(running) < given.jobs:
            running.append(Watched(*waiting.pop(0), given.seed))
        for watched in list(running):
            if watched.poll(1.0 / len(running)):
                continue
            running.remove(watched)
            done += watched.result.inputs
            bad += len(watched.result.findings)
            _report(watched.target, watched.result, given.keep)
        if time.monotonic() - told > _NEWS_SECONDS:
            told = time.monotonic()
            for watched in running:
                print(f"  {watched.target.name}: {watched.result.inputs:,} so far", flush=True)
    print(f"{done:,} inputs, {bad} findings", flush=True)
    return 1 if bad else 0


def _report(target: Target, result: Result, fresh: bool) -> None:
    rate = result.inputs / max(result.seconds, 1e-9)
    print(
        f"{target.name:<20} {result.inputs:>9,} inputs {rate:>7,.0f}/s  "
        f"outcomes {len(result.outcomes):>3}  slowest {result.slowest:6.3f} s  "
        f"peak +{result.peak_bytes >> 20:>3} MiB  left +{result.growth_bytes >> 20:>3} MiB",
        flush=True,
    )
    for why, data in result.findings.items():
        print(f"  FINDING {why}\n    kept as {keep(target, data, 'finding')}", flush=True)
    for data in result.fresh if fresh else ():
        keep(target, data, "new")


if __name__ == "__main__":
    sys.exit(main())
