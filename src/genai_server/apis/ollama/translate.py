"""Translates between Ollama's API (https://docs.ollama.com/api/chat) and this server. `Translation` converts a request
body to the parameters of a chat or text completion; `AnswerBuilder` and `ending` convert answers to Ollama's response
objects, complete or as the lines of a stream; `OLLAMA` has the format and words of Ollama's errors.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar

from genai_server.answer_parts import Part, ScoredToken, WholeAnswer, WholeToolCall
from genai_server.apis.ollama.schemas import (
    GenerateRequest,
    OllamaChatRequest,
    OllamaChosenTool,
    OllamaMessage,
    Options,
    nanoseconds,
)
from genai_server.apis.shared.chat_history import MediaLocation, media_names
from genai_server.generation.parameters.chat_messages import ChatParameters, NamedFunction
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.http.error_wording import Dialect, FieldNames
from genai_server.http.json_response import JsonObject
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import FinishReason
from genai_server.timing import Breakdown

_SCHEMA = "response_format.json_schema.schema"
_EFFORT, _BUDGET = "reasoning_effort", "thinking_token_budget"
# Ollama's names for fields of chats and text completions.
_NAMES = {
    "max_tokens": "options.num_predict",
    "repeat_last_n": "options.repeat_last_n",
    _EFFORT: "think",
    _BUDGET: "think",
    "response_format": "format",
    _SCHEMA: "format",
    "structured_outputs": "format",
    "structured_outputs.json": "format",
}
# A counter, in the length that Mistral's templates require.
_ID = "call{:05}"


class Raw(CompletionRequest):
    """The parameters of a text completion that continues Ollama's prompt without a chat template. Unlike in OpenAI's
    API, the maximum number of tokens has no default, so that the answer may be as long as the context allows.
    """

    default_max_tokens: ClassVar[int | None] = None


class Translation:
    """The translation of a request body of Ollama's API, which is made when the object is created. Its attribute `body`
    has the parameters of a chat or, for a prompt that is used without a chat template, of a text completion.

    The argument `model` is the id of the model to use. The attribute `names` maps fields of the translated body to the
    fields that the client has sent, for error messages. The attribute `overridden` lists the sampling options that are
    ignored because the body's field `options` has another value.
    """

    def __init__(self, body: OllamaChatRequest | GenerateRequest, model: str) -> None:
        self.body: ChatParameters | Raw
        # The given body's names for fields of the translated one.
        self.names = FieldNames(_NAMES, {} if body.think is None else {_EFFORT: body.think})
        # Options at the body's top level that have another value in `options`.
        sampling, self.overridden = body.all_options
        options = {"model": model, **_sampling(sampling)}
        if isinstance(body, GenerateRequest) and body.is_raw:
            self.body = Raw.model_validate({**options, **_raw(body)})
            return
        messages = list(_messages(body.messages or ())) if isinstance(body, OllamaChatRequest) else _question(body)
        tools = _tools(body) if isinstance(body, OllamaChatRequest) else {}
        self.body = ChatParameters.model_validate({**options, "messages": messages, **tools, **_output(body)})
        if isinstance(body.think, str):
            self.body.take_effort_as_budget()
        images = media_names(self.body.messages, _image_locations(body))
        self.names = replace(self.names, table=_NAMES | _names_of_prompt(body) | images)


def _names_of_prompt(body: OllamaChatRequest | GenerateRequest) -> dict[str, str]:
    """For error messages, map paths of the chat's messages, such as `messages[0].content`, to the fields `system` and
    `prompt` of the body from which the messages were made. Returns an empty dictionary for a body of /api/chat, which
    has messages itself.
    """
    if isinstance(body, OllamaChatRequest):
        return {}
    fields = ["system", "prompt"] if body.system else ["prompt"]
    messages = {
        f"messages[{index}]{suffix}": field for index, field in enumerate(fields) for suffix in ("", ".content")
    }
    return {"messages": "prompt", **messages}


def _sampling(options: Options) -> JsonObject:
    limit, seed = options.num_predict or 0, options.seed
    return {
        "max_tokens": limit if limit > 0 else None,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "repeat_last_n": options.num_penalized,
        "seed": None if seed == -1 else seed,
        "stop": options.stop or None,
    }


def _raw(body: GenerateRequest) -> JsonObject:
    fields: JsonObject = {"prompt": body.prompt, "suffix": body.suffix}
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    if body.format:
        schema = {"type": "object"} if body.format == "json" else body.format
        fields["structured_outputs"] = {"json": schema}
    return fields


def _question(body: GenerateRequest) -> list[JsonObject]:
    system = [{"role": "system", "content": body.system}] if body.system else []
    return [*system, {"role": "user", "content": _content(body.prompt, body.images)}]


def _content(text: str | None, images: Sequence[str] | None) -> str | list[JsonObject]:
    """Return the content of a chat message: the text or, if there are images, a list of content parts with the images
    first, as in Ollama's prompts. `images` are base64 texts or data URLs.
    """
    if not images:
        return text or ""
    # Base64 has no colon.
    urls = [image if ":" in image[:16] else f"data:;base64,{image}" for image in images]
    parts: list[JsonObject] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _image_locations(body: OllamaChatRequest | GenerateRequest) -> Iterator[MediaLocation]:
    """Yield the path of each image in the body, such as `messages[0].images[1]`, in the order of the prompt."""
    holders: list[tuple[str, Sequence[str]]] = []
    if isinstance(body, GenerateRequest):
        holders = [("images", body.images or ())]
    else:
        holders = [(f"messages[{n}].images", message.images or ()) for n, message in enumerate(body.messages or ())]
    for path, images in holders:
        for index in range(len(images)):
            yield f"{path}[{index}]", f"{path}[{index}]"


def _output(body: OllamaChatRequest | GenerateRequest) -> JsonObject:
    """Translate the fields that shape the answer: return the chat parameters for reasoning effort, reasoning budget,
    response format and log probabilities. If the body does not set an effort, the model's default applies.
    """
    fields: JsonObject = {}
    if body.think is not None:
        fields[_EFFORT] = body.think if isinstance(body.think, str) else "medium" if body.think else "none"
    if not isinstance(body.think, str | bool):
        fields[_BUDGET] = body.think
    if body.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif body.format:
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": body.format}}
    if body.logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return fields


def _messages(messages: Sequence[OllamaMessage]) -> Iterator[JsonObject]:
    """Translate messages of Ollama's API to messages of a chat in OpenAI's format. Tool calls and tool results without
    an id get one, so that each result refers to its call.
    """
    num_ids = 0
    # Names of the calls without a result, keyed by id.
    waiting: dict[str, str] = {}
    for message in messages:
        content = _content(message.content, message.images)
        fields: JsonObject = {"role": message.role, "content": content}
        if message.role == "tool":
            id = message.tool_call_id or _answered(waiting, message.tool_name) or _ID.format(num_ids)
            num_ids += 1
            name = waiting.pop(id, None) or message.tool_name
            yield {**fields, "tool_call_id": id, **({"name": name} if name else {})}
            continue
        if message.role == "assistant" and message.thinking:
            fields["reasoning_content"] = message.thinking
        if message.tool_calls:
            waiting, calls = {}, []
            for call in message.tool_calls:
                id = call.id or _ID.format(num_ids)
                num_ids += 1
                waiting[id] = call.function.name
                function = {"name": call.function.name, "arguments": call.function.arguments}
                calls.append({"id": id, "type": "function", "function": function})
            fields |= {"content": content or None, "tool_calls": calls}
        yield fields


def _tools(body: OllamaChatRequest) -> JsonObject:
    tools = [{"type": "function", "function": tool.function} for tool in body.tools or ()]
    choice: JsonObject | str | None
    if isinstance(body.tool_choice, OllamaChosenTool):
        chosen = body.tool_choice.function or NamedFunction(name=body.tool_choice.name or "")
        choice = {"type": "function", "function": chosen}
    else:
        choice = body.tool_choice
    return {"tools": tools or None, "tool_choice": choice}


def _answered(waiting: dict[str, str], name: str | None) -> str | None:
    """Find the tool call to which a tool result without an id belongs, and return the id of the call: the first
    unanswered call of the tool `name`, or else the first unanswered call of any tool; None if all calls have results.

    `waiting` maps the ids of the unanswered calls to the names of the called tools.
    """
    named = [id for id, tool in waiting.items() if tool == name]
    return next(iter(named or waiting), None)


def ending(reason: FinishReason, usage: Usage, total: float, breakdown: Breakdown | None) -> JsonObject:
    """Return the fields that only the last line of an answer has in Ollama's format: finish reason, durations in
    nanoseconds and token counts, and `genai_finish_reason` for finish reasons that Ollama does not have.

    `total` is the time since the request's first byte, in seconds. `breakdown` divides it into phases; without one, the
    durations of the phases are reported as 1 ns, the minimum.
    """
    is_cut = reason.is_own
    return {
        "done": True,
        "done_reason": "length" if is_cut else reason.value,
        **({"genai_finish_reason": reason.value} if is_cut else {}),
        "total_duration": nanoseconds(total),
        "load_duration": nanoseconds(breakdown.load if breakdown else 0.0),
        "prompt_eval_count": usage.prompt,
        "prompt_eval_duration": nanoseconds(breakdown.prefill if breakdown else 0.0),
        "eval_count": usage.completion,
        "eval_duration": nanoseconds(breakdown.decode if breakdown else 0.0),
    }


class AnswerBuilder:
    """Builds the response to one request to /api/chat or /api/generate in Ollama's format: the complete object with
    `complete`, the lines of a stream with `part` and `last`, or the response to a request without a prompt with
    `nothing`.
    """

    def __init__(self, model: str, *, is_chat: bool) -> None:
        # The name given in the request.
        self._model = model
        # Whether the answer is a chat message instead of a text.
        self._is_chat = is_chat
        self._num_calls = 0

    def complete(self, answer: WholeAnswer, end: JsonObject) -> JsonObject:
        """Return the object of a complete response. `end` has its last fields (finish reason, durations and token
        counts), which the function `ending` returns.
        """
        calls = [self._call(call) for call in answer.tool_calls]
        return self._line(answer.content, answer.reasoning, calls, answer.tokens) | end

    def part(self, parts: Sequence[Part], tokens: Sequence[ScoredToken] = ()) -> JsonObject:
        """Return a line of a stream, as an object, with the next parts of the answer. All tool calls in it are
        complete. `tokens` are the tokens of the parts with their log probabilities, if the request asks for them.
        """
        more = WholeAnswer(tokens=list(tokens))
        for part in parts:
            more.add(part)
        return self.complete(more, {})

    def last(self, end: JsonObject) -> JsonObject:
        """Return the last line of a stream, as an object without text. `end` has its finish reason, durations and token
        counts, which the function `ending` returns.
        """
        return self._line("", "") | end

    def nothing(self, reason: str) -> JsonObject:
        """Return the response to a request without a prompt, which only loads or unloads the model. `reason` is the
        value of its field `done_reason`: "load" or "unload".
        """
        return self._line("", "") | {"done": True, "done_reason": reason}

    def _line(
        self, content: str, thinking: str, calls: Sequence[JsonObject] = (), tokens: Sequence[ScoredToken] = ()
    ) -> JsonObject:
        message: JsonObject = {"thinking": thinking} if thinking else {}
        if calls:
            message["tool_calls"] = calls
        answer = (
            {"message": {"role": "assistant", "content": content, **message}}
            if self._is_chat
            else {"response": content, **message}
        )
        scored = {"logprobs": [_scored(token) for token in tokens]} if tokens else {}
        return {"model": self._model, "created_at": timestamp(datetime.now(UTC)), **answer, "done": False, **scored}

    def _call(self, call: WholeToolCall) -> JsonObject:
        function = {"index": self._num_calls, "name": call.name, "arguments": call.given}
        self._num_calls += 1
        return {"id": call.id, "function": function}


def timestamp(time: datetime) -> str:
    """Format a time, which must be in UTC, as Ollama's responses do, such as `2026-11-28T09:30:00.000000Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _scored(token: ScoredToken) -> JsonObject:
    fields: JsonObject = {"token": token.text, "logprob": token.logprob, "bytes": tuple(token.data)}
    return {**fields, "top_logprobs": [_scored(other) for other in token.top]} if token.top else fields


# Excludes LM Studio's model lists, whose errors have OpenAI's format.
_PATH = re.compile(r"/api/(?!v[01]/).*", re.DOTALL)

OLLAMA = Dialect(
    lambda scope: _PATH.fullmatch(scope["path"]) is not None,
    lambda error: {"error": error.message},
    words={
        "context_length_exceeded": "the input length exceeds the context length: it has {tokens} tokens, and prompt "
        "and answer together may have {limit} ({limited_by})",
        "model_not_found": "model {name} not found, try pulling it first: {message}",
    },
)
