"""All topics, by the names of their files."""

from __future__ import annotations

from tests.vectors.dealt import CORRECTIONS, DEALING
from tests.vectors.parties import PARTIES
from tests.vectors.rounds import BALLOTS, CONTEXTS, ENCODING, SPEC
from tests.vectors.shares import PACKING, PRG, SHARING, ZERO_SHARING

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
    "spec": SPEC,
    "contexts": CONTEXTS,
}
