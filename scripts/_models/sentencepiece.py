"""A small tokenizer like SentencePiece's BPE, as Llama 2 and Gemma have it. The module needs `.venv-models`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

UNKNOWN, START, END = CONTROL = ("<unk>", "<s>", "</s>")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_SPACE = "▁"
_RARE = -1e6


@dataclass(frozen=True)
class SentencePiece:
    """The tokens by their numbers, with the types and the scores that a GGUF file has of them."""

    tokens: list[str]
    types: list[int]
    scores: list[float]


def write_sentencepiece(text: str, size: int, directory: Path, template: str, *, prefix: bool) -> SentencePiece:
    """Learn a tokenizer from a text and write it; `prefix` puts a space before each text."""
    learner = Tokenizer(models.BPE(unk_token=UNKNOWN, byte_fallback=True, fuse_unk=True))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="never", split=True)
    letters = size - len(_BYTES) - 100
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*CONTROL, *_BYTES], show_progress=False, limit_alphabet=letters
    )
    learner.train_from_iterator(text.splitlines(), trainer)
    learned = json.loads(learner.to_str())["model"]
    vocabulary, merges = learned["vocab"], [(left, right) for left, right in learned["merges"]]
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN, byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    scheme = "first" if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(CONTROL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=END, pad_token=UNKNOWN, chat_template=template
    )
    fast.save_pretrained(directory)
    tokens = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    ranks = {left + right: -float(rank) for rank, (left, right) in enumerate(merges, 1)}
    types = [2 if token == UNKNOWN else 3 if token in CONTROL else 6 if token in _BYTES else 1 for token in tokens]
    return SentencePiece(tokens, types, [ranks.get(token, _RARE) for token in tokens])
