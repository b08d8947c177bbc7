"""A Whisper model with random weights that writes varied text and timestamps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from .speech_files import (
    END_OF_TEXT,
    POSITIONS_PER_SECOND,
    SpeechLayout,
    export_speech,
    make_speech_tokenizer,
    save_speech_tokenizer,
    speech_config,
    timestamp,
)
from .tokenizer import READABLE

# What is recited has segments of this many tokens and seconds. A prompt has at least _TASK tokens.
_SEGMENT_TOKENS, _SEGMENT_SECONDS, _SEGMENTS, _TASK = 28, 7, 4, 3
# Much more than the layers add, so that they do not decide.
_LOUD = 400.0
# Logits have a scale of 3, so a timestamp is chosen now and then.
_TIMESTAMPS, _NEVER = -5.0, -1000.0


def export_random_speech(
    source: Path,
    out: Path,
    tokenizer_texts: tuple[list[str], int],
    settings: dict[str, Any],
    layout: SpeechLayout,
    *,
    recited: str = "",
    **how: Any,
) -> None:
    """Write a Hugging Face directory to `source`, and a model directory of it to `out`; `how` is for the model builder.

    `tokenizer_texts` are the texts that the tokenizer learns from, and its number of tokens of text. `settings` are
    those of WhisperConfig that the layout does not decide. With a text to be `recited`, the model writes it in each
    window, with times, and then ends. Otherwise it never ends.
    """
    tokenizer = make_speech_tokenizer(*tokenizer_texts, layout)
    source.mkdir(parents=True, exist_ok=True)
    save_speech_tokenizer(tokenizer, source, layout)
    model = random_speech_model(tokenizer, settings, layout)
    if recited:
        _recite(model, tokenizer, tokenizer.encode(recited).ids)
    model.save_pretrained(source)
    export_speech(source, out, layout, tokenizer=tokenizer, **how)


@torch.no_grad()  # type: ignore[untyped-decorator]
def random_speech_model(tokenizer: Tokenizer, settings: dict[str, Any], layout: SpeechLayout) -> Any:
    """Random weights that choose readable text, and a timestamp now and then, but never the end of text.

    The norm before the head makes the first dimension of its input 1, so the head's first column is a bias.
    """
    torch.manual_seed(7)
    config = speech_config(tokenizer, layout, settings)
    model = transformers.WhisperForConditionalGeneration(config)
    first_timestamp = tokenizer.token_to_id(timestamp(0))
    text = range(config.eos_token_id)
    readable = torch.tensor([set(tokenizer.decode([token])) <= READABLE for token in text])
    for name, parameter in model.named_parameters():
        if "embed" in name:
            parameter.normal_(std=1.5)
        elif parameter.ndim > 1:
            parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5)
    norm = model.model.decoder.layer_norm
    norm.weight[0], norm.bias[0] = 0.0, 1.0
    head = model.proj_out.weight
    head.normal_(std=3.0 / config.d_model**0.5)
    head[:, 0] = 0.0
    head[first_timestamp:, 0] = _TIMESTAMPS
    for tokens in (torch.nonzero(~readable)[:, 0], torch.arange(len(text), first_timestamp)):
        head[tokens] = 0.0
        head[tokens, 0] = _NEVER
    return model


@torch.no_grad()  # type: ignore[untyped-decorator]
def _recite(model: Any, tokenizer: Tokenizer, words: list[int]) -> None:
    """Let the embedding of each position choose a token: words, times, and the end of text after four segments."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    length = _SEGMENT_TOKENS * _SEGMENTS
    head, positions = model.proj_out.weight, model.model.decoder.embed_positions.weight
    head[end].normal_(std=3.0 / head.shape[1] ** 0.5)
    head[end, 0] = 0.0
    for place in range(len(positions)):
        at = max(0, place - _TASK + 1) % length
        segment, index = divmod(at, _SEGMENT_TOKENS)
        is_time = index >= _SEGMENT_TOKENS - 2
        seconds = _SEGMENT_SECONDS * (segment + 1)
        token = tokenizer.token_to_id(timestamp(seconds * POSITIONS_PER_SECOND)) if is_time else words[at]
        # A time at the end of a segment and one at the beginning of the next; the last segment has only one.
        if at == length - 1:
            token = end
        chosen = head[token].clone()
        chosen[0] = 0.0
        positions[place] += _LOUD * chosen / chosen.norm()
