"""The files of models."""

from __future__ import annotations

from pathlib import Path

from mpc_vote.learning.voters import VoterOptions


def model_file(options: VoterOptions, what: str) -> Path:
    """The file that `--model` names."""
    if not options.model:
        raise ValueError(f"--model is missing: the file of {what}")
    path = Path(options.model)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; --model names {what}")
    return path
