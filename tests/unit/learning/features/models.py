"""A sentence model that is quick to make and to run."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from mpc_vote.compat import import_torchvision

WORDS = ["hello", "there", "win", "a", "prize", "now", "##s"]


def untrained_model(folder: Path) -> Path:
    """A small model that was never trained, as sentence-transformers saves one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    import_torchvision()
    from transformers import BertConfig, BertModel

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    known = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=32)
    tokenizer.save(str(folder / "tokenizer.json"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(known),
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=32,
        )
        BertModel(config).save_pretrained(folder)
    save_steps(folder, "Transformer", "Pooling", "Normalize")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    return folder


def save_steps(folder: Path, *steps: str) -> None:
    listed = [{"type": f"sentence_transformers.models.{step}"} for step in steps]
    (folder / "modules.json").write_text(json.dumps(listed))
