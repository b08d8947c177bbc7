"""A byte-level BPE tokenizer that round-trips any text, and merges only printable ASCII."""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID = range(3)

# Words with one leading space or sign, single digits, runs of signs, runs of white space.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PARTS = r"\p{L}+|\p{N}|[^\p{L}\p{N}\s]+|\s"
SPACE = "Ġ"  # how byte-level BPE writes a space
READABLE = frozenset(string.ascii_letters + string.digits + string.punctuation + " \n")


def train_tokenizer(
    texts: Iterable[str], vocabulary_size: int, marks: Sequence[str] = (), *, special: Sequence[str] = SPECIAL_TOKENS
) -> Tokenizer:
    """Learn merges from the readable ASCII of the texts. The `special` tokens and the `marks` come first.

    Whatever else a text holds (an emoji, an accented letter) stays single bytes, so one such
    character spans several tokens: what a streaming server has to get right.
    """
    tokenizer = _byte_level(models.BPE(), SPLIT)
    _learn(tokenizer, texts, vocabulary_size, [*special, *marks])
    return tokenizer


def pad_vocabulary(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """The same tokenizer with further tokens, which decode to words but which no text is encoded to."""
    found = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = found["model"]["vocab"]
    for token in range(tokenizer.get_vocab_size(), size):
        vocabulary[f"{SPACE}w{token}"] = token
    return Tokenizer.from_str(json.dumps(found))


def train_copying_tokenizer(texts: list[str], vocabulary_size: int, spaced_words: int) -> Tokenizer:
    """Like `train_tokenizer`, but a rare word has the same tokens after a space as after a quote.

    A small model then copies it from a question into a JSON string token by token. Merges are
    learned inside words; a space joins only the commonest words that are one token already.
    """
    parts = _byte_level(models.BPE(), PARTS)
    _learn(parts, texts, vocabulary_size - spaced_words, SPECIAL_TOKENS)
    learned = json.loads(parts.to_str())["model"]
    vocabulary: dict[str, int] = learned["vocab"]
    merges = [(left, right) for left, right in learned["merges"]]
    words = Counter(word for text in texts for word in text.replace("\n", " \n ").split(" ")[1:])
    for word, _ in words.most_common():
        if len(vocabulary) == vocabulary_size:
            break
        if word in vocabulary and not word[0].isupper() and not word.isdigit() and word not in SPECIAL_TOKENS:
            vocabulary[SPACE + word] = len(vocabulary)
            merges.append((SPACE, word))
    tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=merges), SPLIT)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _byte_level(model: models.Model, split: str) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _learn(tokenizer: Tokenizer, texts: Iterable[str], vocabulary_size: int, special_tokens: Sequence[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special_tokens),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_readable_parts(texts), trainer)


def _readable_parts(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from "".join(c if c in READABLE else "\0" for c in text).split("\0")


def is_readable(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token is an ordinary piece of printable ASCII, spaces and newlines."""
    return token >= len(SPECIAL_TOKENS) and set(tokenizer.decode([token])) <= READABLE


def save_tokenizer(tokenizer: Tokenizer, directory: Path, chat_template: str, context: int) -> None:
    """Write the files that the model builder and onnxruntime-genai expect of a model for text."""
    tokens = {"eos_token": TURN_END, "pad_token": END_OF_TEXT}
    save_as(tokenizer, directory, "Qwen2Tokenizer", model_max_length=context, chat_template=chat_template, **tokens)


def save_as(tokenizer: Tokenizer, directory: Path, kind: str, **settings: Any) -> None:
    """Write a tokenizer with these settings as one of the class `kind`: onnxruntime-genai takes known names only."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **settings)
    fast.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": kind}
    path.write_text(json.dumps(config, indent=2) + "\n")
