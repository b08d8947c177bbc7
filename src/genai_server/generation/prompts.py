"""Renders and encodes a request's prompts, and keeps their text if the answer repeats it (`echo`)."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from genai_server.answer_parts import ScoredToken
from genai_server.apis.shared.chat_messages import ChatParameters, Tool
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.errors import InvalidField
from genai_server.http.leniency import Leniency
from genai_server.quoted_values import quoted
from genai_server.text.codec import TextCodec


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt that is returned at the beginning of its answers."""

    text: str
    # The bytes of each token.
    tokens: Sequence[bytes]

    def scored(self, following: list[ScoredToken]) -> list[ScoredToken]:
        """All prompt tokens with log probabilities. `following` are all but the first; without them, []."""
        if len(following) != len(self.tokens) - 1:
            return []
        found, offset = [], 0
        for token in [ScoredToken(self.tokens[0], None), *following]:
            found.append(structs.replace(token, offset=min(offset, len(self.text))))
            offset += len(token.text)
        return found


async def encode_prompts(
    body: ChatParameters | CompletionRequest, codec: TextCodec, leniency: Leniency
) -> list[list[int]]:
    """The token ids of each prompt; a chat has one prompt. Raises InvalidField and NoChatTemplate."""
    if isinstance(body, ChatParameters):
        return [await encode_chat(body, codec, leniency)]
    encoded = []
    for given in body.prompts:
        if isinstance(given, str):
            given = await codec.encode_text(given, add_special=body.add_special_tokens is not False)
            await asyncio.sleep(0)  # many short prompts together take long
        encoded.append(given)
    return encoded


async def encode_chat(body: ChatParameters, codec: TextCodec, leniency: Leniency) -> list[int]:
    """The token ids of a chat's prompt. Raises NoChatTemplate before any other check, and InvalidField."""
    codec.writer.require_template()

    def plain() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        messages = [message.for_template() for message in body.messages]
        return messages, [tool.model_dump(exclude_none=True) for tool in offered_tools(body, codec)]

    messages, tools = await asyncio.to_thread(plain)
    return await codec.encode_chat(messages, tools, _template_variables(body, codec, leniency))


async def encode_prediction(body: ChatParameters | CompletionRequest, codec: TextCodec, max_length: int) -> list[int]:
    """The token ids of the prediction, at most `max_length`; empty without a prediction.

    Raises InvalidField.
    """
    if not isinstance(body, ChatParameters) or body.prediction is None:
        return []
    text = body.prediction.text
    tokens = await codec.encode_text(text, add_special=False, parse_special=False, param="prediction")
    if len(tokens) > max_length:
        raise InvalidField(
            f"prediction may have at most {max_length} tokens (GENAI_MAX_LENGTH), given {len(tokens)}",
            param="prediction",
        )
    return tokens


def offered_tools(body: ChatParameters, codec: TextCodec) -> list[Tool]:
    """The tools for the chat template. Raises InvalidField if the model does not support tools."""
    if not body.tools or body.tool_choice == "none":
        return []
    if not codec.writer.takes_tools or codec.dialect.tool_format is None:
        raise InvalidField(
            "tools are not supported by this model: its chat template has none, or uses a format unknown to this "
            "server (set it by GENAI_TOOL_PARSER)",
            param="tools",
        )
    names = Counter(tool.function.name for tool in body.tools)
    if twice := [name for name, times in names.items() if times > 1]:
        raise InvalidField(f"tools must have unique function names, given {quoted(twice[0])} twice", param="tools")
    return body.tools


def echoed_prompts(
    body: CompletionRequest, encoded: Sequence[list[int]], codec: TextCodec, vocab_size: int
) -> list[EchoedPrompt | None]:
    """The echoed prompts; None for each without `echo`. Slow, so call it in a thread.

    Raises InvalidField for tokens outside the model's vocabulary.
    """
    found = []
    for given, tokens in zip(body.prompts, encoded, strict=True):
        unknown = next((token for token in tokens if token >= vocab_size), None)
        if unknown is not None:
            raise InvalidField(
                f"prompt must have ids below {vocab_size}, the model's vocabulary size, given {unknown}", param="prompt"
            )
        text = given if isinstance(given, str) else codec.decode(tokens, param="prompt")
        found.append(
            EchoedPrompt(text, [codec.tokenizer.token_bytes(token) for token in tokens]) if body.echo else None
        )
    return found


def _template_variables(body: ChatParameters, codec: TextCodec, leniency: Leniency) -> dict[str, Any]:
    """The variables for the chat template. Raises InvalidField for an effort without effect, unless lenient."""
    variables = dict(body.chat_template_kwargs or {})
    effort = body.reasoning_effort
    if effort is None:
        return variables
    if codec.writer.reads("reasoning_effort"):
        variables.setdefault("reasoning_effort", effort)
    elif codec.writer.reads("enable_thinking"):
        variables.setdefault("enable_thinking", effort != "none")
    elif effort != "none" and not leniency.leave_out("reasoning_effort"):
        raise InvalidField(
            f"reasoning_effort {quoted(effort)} has no effect with this model: its chat template does not read it",
            param="reasoning_effort",
        )
    return variables
