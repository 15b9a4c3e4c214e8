"""All topics, by the names of their files."""

from __future__ import annotations

from tests.security.vectors.dealt import CORRECTIONS, DEALING
from tests.security.vectors.parties import PARTIES
from tests.security.vectors.rounds import BALLOTS, COINS, CONTEXTS, ENCODING, SPEC
from tests.security.vectors.shares import PACKING, PRG, SHARING, ZERO_SHARING

TOPICS = {
    "prg": PRG,
    "packing": PACKING,
    "sharing": SHARING,
    "zero_sharing": ZERO_SHARING,
    "dealing": DEALING,
    "corrections": CORRECTIONS,
    "parties": PARTIES,
    "ballots": BALLOTS,
    "encoding": ENCODING,
    "coins": COINS,
    "spec": SPEC,
    "contexts": CONTEXTS,
}
