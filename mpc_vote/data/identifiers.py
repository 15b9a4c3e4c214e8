"""Columns that are called as identifiers are, which say nothing about other records."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ID = {"id", "pid", "ptid", "uuid", "guid", "mrn", "ssn", "key"}
_ID_FIRST = {"id", "pid", "ptid", "index", "row"}
_NUMBER = {"number", "no", "nr", "num"}
_NUMBERED = {
    *("patient", "pt", "subject", "participant", "person", "member", "client", "customer", "user"),
    *("record", "case", "chart", "encounter", "admission", "stay", "visit", "episode"),
    *("row", "study", "sample", "specimen", "accession", "account", "insurance", "hospital", "nhs"),
}
_JOINED = {noun + end for noun in _NUMBERED for end in {"id", *_NUMBER}}


def is_identifier(name: str) -> bool:
    """Whether a name is one of an identifier, by its words: `PatientID`, `case no` and `mrn` are,
    `steroid` and `UricAcid` are not."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    numbered = len(words) > 1 and words[-1] in _NUMBER and words[-2] in _NUMBERED
    return numbered or words[-1] in _ID or words[0] in _ID_FIRST or "".join(words) in _JOINED
