"""A model's text side as one: messages in, token ids out; token ids in, text out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genai_server.errors import ModelDirectoryError
from genai_server.text.chat_template import SCRIPTED_TEMPLATE, ChatTemplate, load_chat_template
from genai_server.text.encoder import Encoder
from genai_server.text.tokenizer import ByteTokenizer, Decoder, ModelTokenizer, Tokenizer


class TextCodec:
    """Chat template and tokenizer of one model; belongs to the event loop, and must be closed."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, model_dir: Path = Path()) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer, model_dir)

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt's token ids. Raises InvalidField if the template or the tokenizer refuses the messages."""
        return await self._encoder.encode(self._template.render(messages))

    def decoder(self) -> Decoder:
        """A decoder for one answer."""
        return self._tokenizer.decoder()

    def close(self) -> None:
        """Free what it holds."""
        self._encoder.close()


def load_text_codec(model_dir: Path, device: str) -> TextCodec:
    """The text side of the model that `device` runs.

    Raises ConfigurationError if a file cannot be used, ImportError without the library.
    """
    if device.startswith("scripted"):
        return TextCodec(ChatTemplate(SCRIPTED_TEMPLATE, {}), ByteTokenizer())
    try:
        return TextCodec(load_chat_template(model_dir), ModelTokenizer(model_dir), model_dir)
    except RuntimeError as error:
        raise ModelDirectoryError(f"the tokenizer in {model_dir} cannot be loaded: {error}") from None
