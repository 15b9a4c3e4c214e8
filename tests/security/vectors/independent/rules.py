"""A second implementation of what is on file, from docs/protocol.md alone, in plain integers.

It imports nothing of the project and shares no code with it: where both agree, the section
"Encodings and test vectors" says enough. It is written to be read beside that section, not to be
quick. Here are its rules, by the names on file.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.security.vectors.independent import ballots, items, messages, parties, sessions, streams
from tests.security.vectors.independent.streams import Given

RULES: dict[str, dict[str, Callable[[Given], Given]]] = {
    "prg": {"reads": streams.reads, "joint_seed": streams.joint},
    "packing": {
        "pack": streams.packing,
        "unpack": streams.unpacking,
        "unpack_planes": streams.unpacking_planes,
    },
    "sharing": {"split": ballots.split, "split_bits": ballots.split_bits},
    "zero_sharing": {"zero_share": ballots.zero_share},
    "dealing": {
        "plan": sessions.plan,
        "draw": sessions.draw,
        "own_seeds": sessions.own_seeds,
        "commitment": sessions.committed,
        "copy": sessions.copy,
    },
    "corrections": {"correct": items.corrected, "expand_last": items.expand_last},
    "parties": {"argmax": parties.argmax, "marks": parties.marks, "count": parties.count},
    "ballots": {
        "one_hot": ballots.one_hot,
        "knn_frequency": ballots.knn_frequency,
        "knn_count": ballots.knn_count,
        "multi_label": ballots.multi_label,
    },
    "encoding": {"encode": ballots.encode},
    "coins": {"law": ballots.law},
    "spec": {"seal": messages.seal, "parse": messages.parse},
    "contexts": {
        "deal_context": messages.deal_context,
        "stock_context": messages.stock_context,
        "count_context": messages.count_context,
        "task": messages.task,
        "queries": messages.queries,
        "labels": messages.labels,
        "tensor": messages.tensor,
    },
}
