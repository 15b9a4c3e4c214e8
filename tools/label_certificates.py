"""Makes the certificates of labels that are shipped: `python tools/label_certificates.py`.

It goes on where it was left: what is in the file is kept. A flip takes up to a minute. Beside the
laws of usual sigmas there are some with few coins, which most other laws include.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mpc_vote.privacy import label_table
from mpc_vote.privacy.certificates import Certificate, certify
from mpc_vote.privacy.coins import CoinLaw, fraction_bits_for, law_for
from mpc_vote.privacy.label_steps import Seen
from mpc_vote.privacy.label_table import FILE, LABEL_SLACK, Entry, Noise

USUAL = (4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 22, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100)
FRACTION_BITS = 4
PATH = Path(label_table.__file__).with_name(FILE)


def wanted() -> Iterator[tuple[Seen, Noise, int]]:
    """In the order of their use."""
    for seen in (Seen.THRESHOLD, Seen.FLIP):
        for sigma in USUAL:
            yield seen, law_for(sigma), 1 << fraction_bits_for(sigma)
    move = 1 << FRACTION_BITS
    for sigma in USUAL:
        if sigma <= 25:
            yield Seen.THRESHOLD, float(sigma * move) ** 2, move
    for sigma in (4, 5, 6):
        yield Seen.FLIP, float(sigma * move) ** 2, move
    for seen in (Seen.THRESHOLD, Seen.FLIP):
        for law in base_laws():
            yield seen, law, 1


def base_laws() -> Iterator[CoinLaw]:
    """For every heaviest weight, with the least of lighter coins and some numbers of heavy ones."""
    for heaviest in (1, 2, 3, 4, 6, 8, 12, 16, 24):
        for heavy in (48, 53, 59, 65, 72, 80, 88, 98):
            law = law_with(heaviest, heavy)
            if law is not None:
                yield law


def law_with(heaviest: int, heavy: int) -> CoinLaw | None:
    """The law of the least sigma that has so many heaviest coins, without what it has left over."""
    least: dict[int, int] = {}
    for tenths in range(40, 1150):
        levels = dict(law_for(tenths / 10).levels)
        if max(levels) != heaviest or levels[heaviest] < heavy:
            continue
        least = {w: min(n, least.get(w, n)) for w, n in levels.items()}
    if not least:
        return None
    least[heaviest] = heavy
    if sum(w * n for w, n in least.items()) % 2:
        least[1] -= 1
    return CoinLaw(tuple(sorted((w, n) for w, n in least.items() if n)))


def main() -> None:
    entries = list(label_table.read(PATH.read_text())) if PATH.exists() else []
    known = {(one.seen, one.noise, one.move) for one in entries}
    for seen, noise, move in wanted():
        if (seen, noise, move) in known:
            continue
        known.add((seen, noise, move))
        law = Entry(seen, noise, move, _NONE).law
        found = certify(seen, law, move, LABEL_SLACK)
        entries.append(Entry(seen, noise, move, found))
        PATH.write_text(label_table.written(entries))
        print(f"{seen}, {noise}, move {move}: {found.costs[-1]:.3g}", flush=True)


_NONE = Certificate((0.0,), (1.0,), 0.0)

if __name__ == "__main__":
    main()
