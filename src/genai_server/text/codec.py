"""A model's text side as one: messages or text in, token ids out; token ids in, text out."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.chat_template import SCRIPTED_TEMPLATE, ChatTemplate, load_chat_template
from genai_server.text.dialect import AUTOMATIC, Dialect, read_dialect
from genai_server.text.encoder import Encoder
from genai_server.text.tokenizer import ByteTokenizer, Decoder, ModelTokenizer, Tokenizer

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class TextCodec:
    """Chat template and tokenizer of one model; belongs to the event loop, and must be closed.

    Messages and tools are objects as OpenAI's clients send them, a message's content being a text or None.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, dialect: Dialect) -> None:
        self.dialect = dialect
        self._template = template
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)

    async def encode_chat(
        self, messages: Messages, tools: Tools | None = None, template_kwargs: Mapping[str, Any] | None = None
    ) -> list[int]:
        """The prompt's token ids; `template_kwargs` are more variables for the template.

        Raises InvalidField, naming the message, if the template cannot make a prompt of them.
        """
        return await self._encoder.encode(self.render_chat(messages, tools, template_kwargs))

    def render_chat(
        self, messages: Messages, tools: Tools | None = None, template_kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt's text. Raises InvalidField like `encode_chat`."""
        return self._template.render(messages, tools, template_kwargs or {})

    async def encode_text(
        self, text: str, add_special: bool = True, *, parse_special: bool = True, param: str = "prompt"
    ) -> list[int]:
        """The token ids of a raw text.

        `add_special` puts the tokens around it that the tokenizer puts around a whole text, such as the one that begins
        it. Without `parse_special` the special tokens in the text are taken for plain text. Raises InvalidField, naming
        `param`, if the text is not valid Unicode.
        """
        return await self._encoder.encode(text, add_special=add_special)

    def decode(self, tokens: Sequence[int], *, param: str = "tokens") -> str:
        """The text of token ids with its special tokens; bytes that are no character become U+FFFD.

        Raises InvalidField, naming `param`, for an id that the tokenizer does not know.
        """
        unknown = next((n for n, token in enumerate(tokens) if not self._tokenizer.knows(token)), None)
        if unknown is not None:
            raise InvalidField(
                f"{param}[{unknown}] must be a token id of this model (it has {self.vocab_size}); "
                f"given {tokens[unknown]}",
                param=param,
            )
        return self._tokenizer.decode(tokens)

    def decoder(self, show: Collection[int | str] = (), *, continues: bool = False) -> Decoder:
        """A decoder for one answer that shows, of the special tokens, only those in `show`, given as ids or texts.

        With `continues` the answer goes on from a text, so that a blank at its begin is one.
        """
        return self._tokenizer.decoder(show, continues=continues)

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to a text, in UTF-8, of which it may be a part; empty for an unknown id."""
        return self._tokenizer.token_bytes(token)

    def token_text(self, token: int) -> str:
        """The same as text, with U+FFFD for bytes that are no character by themselves."""
        return self._tokenizer.token_bytes(token).decode(errors="replace")

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The texts of the tokens that structure a prompt rather than being text, with their ids."""
        return self._tokenizer.special_tokens

    @property
    def vocab_size(self) -> int:
        """How many tokens the tokenizer knows. The model may have more."""
        return self._tokenizer.vocab_size

    def reads(self, name: str) -> bool:
        """Whether the chat template reads a variable, such as `tools`, `enable_thinking` or `reasoning_effort`."""
        return self._template.reads(name)

    def mentions(self, text: str) -> bool:
        """Whether a text, such as `<tool_call>`, occurs in the chat template."""
        return self._template.mentions(text)

    def close(self) -> None:
        """Free what it holds."""
        self._encoder.close()


def load_text_codec(
    model_dir: Path, device: str, *, tool_parser: str = AUTOMATIC, allow_special_tokens: bool = False
) -> TextCodec:
    """The text side of the model that `device` runs; `tool_parser` names the format of its tool calls.

    Raises ModelDirectoryError if a file cannot be used.
    """
    scripted = device.startswith("scripted")
    template = ChatTemplate(SCRIPTED_TEMPLATE, {}) if scripted else load_chat_template(model_dir)
    tokenizer = ByteTokenizer() if scripted else ModelTokenizer(model_dir)
    return TextCodec(template, tokenizer, read_dialect(template.source, tool_parser))
