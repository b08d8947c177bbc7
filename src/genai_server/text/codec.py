"""A model's text side as one: messages in, token ids out; token ids in, text out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genai_server.text.chat_template import SCRIPTED_TEMPLATE, ChatTemplate, load_chat_template
from genai_server.text.tokenizer import ByteTokenizer, Decoder, ModelTokenizer, Tokenizer


class TextCodec:
    """Chat template and tokenizer of one model."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt's token ids. Raises InvalidField if the template refuses the messages."""
        return self._tokenizer.encode(self._template.render(messages))

    def decoder(self) -> Decoder:
        """A decoder for one answer."""
        return self._tokenizer.decoder()


def load_text_codec(model_dir: Path, device: str) -> TextCodec:
    """The text side of the model that `device` runs.

    Raises ModelDirectoryError, RuntimeError and ImportError as its parts do.
    """
    if device.startswith("scripted"):
        return TextCodec(ChatTemplate(SCRIPTED_TEMPLATE, {}), ByteTokenizer())
    return TextCodec(load_chat_template(model_dir), ModelTokenizer(model_dir))
