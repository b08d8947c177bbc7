"""The files of a Whisper directory: its tokenizer's special tokens, its rules of generation, and its graphs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import WhisperConfig

from .export import export
from .tokenizer import pad_vocabulary, save_as, train_tokenizer

SAMPLE_RATE = 16_000
# onnxruntime-genai accepts no other length of a window: 3,000 frames, of which the encoder makes one position each two.
WINDOW_SECONDS, FRAMES_PER_SECOND, POSITIONS_PER_SECOND = 30, 100, 50
TIMESTAMPS = WINDOW_SECONDS * POSITIONS_PER_SECOND + 1  # from <|0.00|> to <|30.00|>
END_OF_TEXT = "<|endoftext|>"
START, TRANSLATE, TRANSCRIBE = "<|startoftranscript|>", "<|translate|>", "<|transcribe|>"
START_OF_PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"
# What a transcript has no use for, as Whisper's own list: brackets, notes, and other signs that are not spoken.
_UNSPOKEN = '"#()*+/:;<=>@[\\]^_`{|}~'


@dataclass(frozen=True)
class SpeechLayout:
    """What a Whisper model knows besides text: codes of languages such as "en", and how many tokens fit.

    With `may_be_empty` a transcript may end before its first word. Whisper's own rules forbid that.
    """

    languages: Sequence[str]
    context: int = 448
    may_be_empty: bool = False

    def special_tokens(self) -> list[str]:
        """In Whisper's order, behind the text's tokens and before the timestamps."""
        languages = [f"<|{code}|>" for code in self.languages]
        marks = [TRANSLATE, TRANSCRIBE, "<|startoflm|>", START_OF_PREVIOUS, NO_SPEECH, NO_TIMESTAMPS]
        return [END_OF_TEXT, START, *languages, *marks]


def timestamp(at: int) -> str:
    """The token for a time in steps of 0.02 s."""
    return f"<|{at / POSITIONS_PER_SECOND:.2f}|>"


def speech_settings(width: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    """Settings of WhisperConfig for an encoder and a decoder alike; `inner` is the width of their MLPs."""
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": inner}
    sides = {f"{side}_{name}": value for name, value in sizes.items() for side in ("encoder", "decoder")}
    return {"d_model": width, **sides, "tie_word_embeddings": False}


def speech_config(tokenizer: Tokenizer, layout: SpeechLayout, settings: dict[str, Any]) -> WhisperConfig:
    """Whisper's configuration for a tokenizer of this layout."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    return WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_source_positions=WINDOW_SECONDS * POSITIONS_PER_SECOND,
        max_target_positions=layout.context,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=tokenizer.token_to_id(START),
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **settings,
    )


def make_speech_tokenizer(texts: Iterable[str], text_tokens: int, layout: SpeechLayout) -> Tokenizer:
    """A byte-level BPE tokenizer with exactly `text_tokens` of text, then Whisper's special tokens."""
    tokenizer = pad_vocabulary(train_tokenizer(texts, text_tokens, special=()), text_tokens)
    tokenizer.add_special_tokens(layout.special_tokens())
    tokenizer.add_tokens([AddedToken(timestamp(at), normalized=False) for at in range(TIMESTAMPS)])
    return tokenizer


def save_speech_tokenizer(tokenizer: Tokenizer, directory: Path, layout: SpeechLayout) -> None:
    """Write the files that the model builder and onnxruntime-genai expect of a model for speech."""
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END_OF_TEXT)
    save_as(tokenizer, directory, "WhisperTokenizer", model_max_length=layout.context, **tokens)


def generation_config(tokenizer: Tokenizer, layout: SpeechLayout) -> dict[str, Any]:
    """As Hugging Face's for Whisper; attention heads for timestamps of words are not known."""
    ids = {token: tokenizer.token_to_id(token) for token in layout.special_tokens()}
    end, start = ids[END_OF_TEXT], ids[START]
    unspoken = {token for sign in _UNSPOKEN for text in (sign, " " + sign) if (token := _only_token(tokenizer, text))}
    marks = [start, ids[TRANSLATE], ids[TRANSCRIBE], ids["<|startoflm|>"], ids[START_OF_PREVIOUS], ids[NO_SPEECH]]
    return {
        "begin_suppress_tokens": [tokenizer.encode(" ").ids[0], *([] if layout.may_be_empty else [end])],
        "bos_token_id": end,
        "decoder_start_token_id": start,
        "eos_token_id": end,
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in layout.languages},
        "max_initial_timestamp_index": 50,
        "max_length": layout.context,
        "no_timestamps_token_id": ids[NO_TIMESTAMPS],
        "pad_token_id": end,
        "prev_sot_token_id": ids[START_OF_PREVIOUS],
        "return_timestamps": False,
        "suppress_tokens": sorted({*unspoken, *marks}),
        "task_to_id": {"transcribe": ids[TRANSCRIBE], "translate": ids[TRANSLATE]},
    }


def _only_token(tokenizer: Tokenizer, text: str) -> int | None:
    ids = tokenizer.encode(text).ids
    return ids[0] if len(ids) == 1 else None


def export_speech(
    source: Path, target: Path, layout: SpeechLayout, *, precision: str, block_size: int, tokenizer: Tokenizer
) -> None:
    """Build both graphs from a Hugging Face directory, and write the rules of generation next to them."""
    export(source, target, precision=precision, block_size=block_size)
    shutil.copy(source / "tokenizer_config.json", target)
    config = json.dumps(generation_config(tokenizer, layout), indent=2) + "\n"
    (target / "generation_config.json").write_text(config)
