"""How large a round may be, at every role alike."""

from __future__ import annotations

from mpc_vote.argmax.engine import MAX_CLASSES

__all__ = [
    "DIGEST_BYTES",
    "MAX_AGENTS",
    "MAX_CLASSES",
    "MAX_K",
    "MAX_LEVELS",
    "MAX_PARTIES",
    "MAX_QUERIES",
    "MAX_QUERY_BYTES",
    "MAX_ROUNDS_AT_ONCE",
    "MAX_SHARE_BYTES",
    "MAX_SPEC_BYTES",
    "MAX_TASKS",
    "MAX_VERIFIED_NUMBERS",
    "OVERFLOW_PROBABILITY",
    "SUBMISSION_ID_BYTES",
]

# Room for the longest roster, and for fields of a later version.
MAX_SPEC_BYTES = 1 << 20
MAX_QUERIES = 10_000
MAX_QUERY_BYTES = 256 << 20
# Of a round's explicit shares at all parties together, and of what a party holds of all rounds.
MAX_SHARE_BYTES = 4 << 30
MAX_AGENTS = 4_096
MAX_PARTIES = 16
# That one agent answers, or one coordinator serves: who answers what fits a message.
MAX_TASKS = 32
# An agent declines further ones, so a service does not open them.
MAX_ROUNDS_AT_ONCE = 8
MAX_K = 1 << 20
# Each level at least halves the classes.
MAX_LEVELS = 10
DIGEST_BYTES = 32
SUBMISSION_ID_BYTES = 16
# A total outside the ring would give a wrong label: allowed with this probability in a whole round.
OVERFLOW_PROBABILITY = 2.0**-60
# Numbers that are dealt for a verified round: a minute of a dealer's time, in eight copies.
MAX_VERIFIED_NUMBERS = 1 << 28
