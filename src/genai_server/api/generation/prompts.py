"""A request's prompts: rendered and encoded, and kept as text where the answer repeats them (`echo`)."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from genai_server.answer_parts import ScoredToken
from genai_server.api.leniency import Leniency
from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.chat import ChatParameters, Tool
from genai_server.openai_api.schemas.completions import CompletionRequest
from genai_server.quoted_values import quoted
from genai_server.text.codec import TextCodec


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt that its answers begin with."""

    text: str
    # The bytes of each token.
    tokens: Sequence[bytes]

    def scored(self, following: list[ScoredToken]) -> list[ScoredToken]:
        """All tokens with log probabilities, where `following` are all but the first; [] without any."""
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
    """The token ids of each prompt; a chat has one. Raises InvalidField and NoChatTemplate."""
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
    """The token ids of a chat's prompt. Raises InvalidField, and before all else NoChatTemplate."""
    codec.writer.require_template()

    def plain() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        messages = [message.for_template() for message in body.messages]
        return messages, [tool.model_dump(exclude_none=True) for tool in offered_tools(body, codec)]

    messages, tools = await asyncio.to_thread(plain)
    return await codec.encode_chat(messages, tools, _template_variables(body, codec, leniency))


async def encode_prediction(body: ChatParameters | CompletionRequest, codec: TextCodec, max_length: int) -> list[int]:
    """The token ids, at most `max_length`, of what the answer is expected to be; none without a prediction.

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
    """The tools for the chat template. Raises InvalidField if the model cannot be given tools."""
    if not body.tools or body.tool_choice == "none":
        return []
    if not codec.writer.takes_tools or codec.dialect.tool_format is None:
        raise InvalidField(
            "tools cannot be used: the model's chat template knows none, or none in a format that this server knows "
            "(GENAI_TOOL_PARSER names one)",
            param="tools",
        )
    names = Counter(tool.function.name for tool in body.tools)
    if twice := [name for name, times in names.items() if times > 1]:
        raise InvalidField(
            f"tools must not have two functions of one name, given {quoted(twice[0])} twice", param="tools"
        )
    return body.tools


def echoed_prompts(
    body: CompletionRequest, encoded: Sequence[list[int]], codec: TextCodec, vocab_size: int
) -> list[EchoedPrompt | None]:
    """What the answers to each prompt begin with; None without `echo`. Takes long.

    Raises InvalidField for tokens that the model does not have.
    """
    found = []
    for given, tokens in zip(body.prompts, encoded, strict=True):
        strange = next((token for token in tokens if token >= vocab_size), None)
        if strange is not None:
            raise InvalidField(
                f"prompt must have ids below {vocab_size}, the model's vocabulary, given {strange}", param="prompt"
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
    elif effort != "none" and not leniency.leaves_out("reasoning_effort"):
        raise InvalidField(
            f"reasoning_effort {quoted(effort)} has no effect with this model: its chat template knows no reasoning",
            param="reasoning_effort",
        )
    return variables
