"""Translates requests of the Responses API to chat parameters (ChatParameters), the form of a chat request that all
APIs of this server share, creates the response object, and compacts and shortens conversations
(https://platform.openai.com/docs/api-reference/responses).

`OfferedTools` decides which tools the prompt defines at its beginning, which ones items of the conversation introduce,
and which ones the answer may call. A tool with `defer_loading` is not defined at the beginning, but at the item that
adds it: the output of a tool search that the client has run, or an item of type `additional_tools`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

from pydantic import TypeAdapter

from genai_server.apis.responses.items import (
    conversions,
    data_of,
    encrypted,
    is_call,
    is_foreign,
    is_medium,
    is_output,
    message,
    new_id,
    new_item,
    parts_of,
    to_messages,
    without_effect,
)
from genai_server.apis.responses.items import input_text as text_part
from genai_server.apis.responses.schemas import (
    LOGPROBS,
    AllowedResponseTools,
    ChosenTool,
    CompactRequest,
    NamedMcpTool,
    ResponsesRequest,
)
from genai_server.apis.responses.tools import (
    CLIENT_TOOLS,
    CustomTool,
    FunctionTool,
    ItemTool,
    McpFunction,
    McpTool,
    NamespacedTool,
    ResponseTool,
    flattened,
    full_name,
)
from genai_server.apis.shared.chat_history import MediaLocation, introduction, media_names
from genai_server.errors import InvalidField, quoted
from genai_server.generation.parameters import chat_messages
from genai_server.generation.parameters.base import WithoutEffect
from genai_server.generation.parameters.chat_messages import MAX_MESSAGES, MAX_TOOLS, ChatMessage, ChatParameters, Tool
from genai_server.generation.parameters.sampling_parameters import GenerationFields
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import Leniency
from genai_server.messages.generation_request import Sampling

_TOOL_ADDING_TYPES = ("additional_tools", "tool_search_output")
_TOOL: TypeAdapter[ItemTool] = TypeAdapter(ItemTool)


class OfferedTools:
    """The tools that a request and the conversation that it continues define. `listed` are the tools that the prompt
    defines at its beginning, and `callable` are those that the answer may call, including those that items of the
    conversation have added. Created for each request.

    Creating it raises InvalidField if there are too many tools.
    """

    def __init__(self, body: ResponsesRequest, conversation: Sequence[JsonObject]) -> None:
        body_tools = list(body.tools or [])
        self._deferred = [tool for tool in body_tools if isinstance(tool, NamespacedTool) and tool.defer_loading]
        hidden = {tool.full_name for tool in self._deferred} - set(body.chosen_names())
        brought = {tool.full_name: tool for tool in chain.from_iterable(map(_added_tools, conversation))}
        self.listed = [tool for tool in body_tools if tool.full_name not in hidden]
        shown = brought.keys() | _called(conversation) | {tool.full_name for tool in self.listed}
        # What an answer may call: tools of the request have precedence over those of the same name that items bring.
        self.callable = [tool for tool in body_tools if tool.full_name in shown]
        names = {tool.full_name for tool in self.callable}
        self.callable += [tool for name, tool in brought.items() if name not in names]
        if len(self.callable) > MAX_TOOLS:
            raise InvalidField("input", f"may bring tools until there are {MAX_TOOLS}", given=len(self.callable))
        if not self.listed:  # a model that knows of no tool does not know how to call one
            self.listed = self.callable
        self._defined = {tool.full_name for tool in self.listed}

    def by_name(self) -> dict[str, ResponseTool]:
        """Return the tools that the answer may call, keyed by their names in the prompt."""
        return {tool.full_name: tool for tool in self.callable}

    def function(self, tool: ResponseTool) -> JsonObject:
        """Return the definition of `tool` as a function. Chat parameters and prompts have all tools in this form."""
        if isinstance(tool, FunctionTool):
            fields = {"description": tool.full_description, "parameters": tool.parameters, "strict": tool.strict}
            return {"name": tool.full_name} | {name: value for name, value in fields.items() if value is not None}
        if isinstance(tool, CustomTool):
            form = tool.format
            grammar = (None, None) if form is None else (form.syntax, form.definition)
            return chat_messages.function_of(tool.full_name, tool.full_description, *grammar)
        assert not isinstance(tool, McpTool), "its functions are in its place"
        return CLIENT_TOOLS[tool.type].function(tool, self._deferred)

    def introduce(self, item: JsonObject) -> str:
        """Return the text that defines, within the prompt, the tools which `item` adds to the conversation. Tools that
        are defined at the beginning of the prompt appear only by name. The result is "" if an item `additional_tools`
        adds no other tools.
        """
        tools = list(_added_tools(item))
        if item["type"] == "additional_tools" and all(tool.full_name in self._defined for tool in tools):
            return ""
        tools_by_name = self.by_name()
        return introduction(
            {"name": tool.full_name}
            if tool.full_name in self._defined
            else self.function(tools_by_name[tool.full_name])
            for tool in tools
        )


def _added_tools(item: JsonObject) -> Iterator[ResponseTool]:
    """Yield the tools that an item of the conversation adds to those that the model may call. Most items add none."""
    if item["type"] in _TOOL_ADDING_TYPES and not is_foreign(item):
        yield from flattened(map(_TOOL.validate_python, item["tools"]))


def _called(conversation: Sequence[JsonObject]) -> set[str]:
    """Return the names, as in the prompt, of the functions and custom tools that are called in the conversation."""
    calls = (item for item in conversation if is_call(item) and "name" in item)
    return {full_name(call["name"], call.get("namespace")) for call in calls}


# The instruction to the model for compacting a conversation.
_COMPACT = (
    "Summarise the conversation above, so that it can continue from your summary alone. Keep names, numbers, "
    "decisions, results of tools and what is still to be done. Write the summary only."
)
_SAME = (set(GenerationFields.model_fields) - set(WithoutEffect.model_fields) - {"max_tokens"}) | {
    "chat_template_kwargs",
    "parallel_tool_calls",
}
# The Responses API's names for fields of chats.
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "thinking_token_budget": "reasoning.max_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}


def to_chat(body: ResponsesRequest, conversation: Sequence[JsonObject]) -> ChatParameters:
    """Translate a request to chat parameters, the form of a chat request that all APIs of this server share.
    `conversation` has all items for the prompt: those of earlier turns and those of the request's own input.

    Raises InvalidField if the conversation has no message or too many, if there are too many tools, and if the output
    of an unknown tool call comes after the user's last message.
    """
    tools = OfferedTools(body, conversation)
    messages = to_messages(conversation, tools.introduce)
    if not messages:
        raise InvalidField("input", "must have an item that the model can read")
    if body.instructions is not None:
        messages.insert(0, ChatMessage.model_validate({"role": "system", "content": body.instructions}))
    if len(messages) > MAX_MESSAGES:
        raise InvalidField(
            "input",
            f"may have at most {MAX_MESSAGES} messages, counting instructions and earlier turns",
            given=len(messages),
        )
    fields: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    fields |= {"tools": _tools(body, tools, tools.callable) or None, "tool_choice": _tool_choice(body)}
    if LOGPROBS in (body.include or []):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = {"type": body.text.format.type}
        if schema := body.text.format.model_dump(exclude={"type"}, exclude_none=True, by_alias=True):
            fields["response_format"]["json_schema"] = schema
    if body.reasoning is not None:
        fields |= {"reasoning_effort": body.reasoning.effort, "thinking_token_budget": body.reasoning.max_tokens}
    chat = ChatParameters(messages=messages, max_tokens=body.max_output_tokens, **fields)
    if tools.listed != tools.callable:
        chat.list_tools(_tools(body, tools, tools.listed))
    return chat


def _tools(body: ResponsesRequest, offered: OfferedTools, tools: Sequence[ResponseTool]) -> list[Tool]:
    """Convert `tools` to functions for the chat parameters, without those that `tool_choice` of the request excludes.
    `offered` has the tools of the whole request.
    """
    choice = body.tool_choice
    allowed = set(body.chosen_names()) if isinstance(choice, AllowedResponseTools) else None
    return [
        Tool.model_validate({"type": "function", "function": offered.function(tool)})
        for tool in tools
        if allowed is None or tool.full_name in allowed
    ]


def _tool_choice(body: ResponsesRequest) -> Any:
    choice: Any = body.tool_choice
    if isinstance(choice, AllowedResponseTools):
        return choice.mode
    if isinstance(choice, ChosenTool):
        return {"type": "function", "function": {"name": body.chosen_names()[0]}}
    if isinstance(choice, NamedMcpTool):
        return _mcp_choice(body, choice)
    return choice


def _mcp_choice(body: ResponsesRequest, choice: NamedMcpTool) -> JsonObject:
    names = [
        tool.full_name
        for tool in body.tools or ()
        if isinstance(tool, McpFunction) and tool.namespace == choice.server_label
        if choice.name in (None, tool.name)
    ]
    if not names:
        tool_name = f"{choice.server_label} {choice.name or ''}".strip()
        raise InvalidField("tool_choice", f"names the tool {quoted(tool_name)}, which is not in tools")
    functions = [{"type": "function", "function": {"name": name}} for name in names]
    if choice.name is not None:
        return functions[0]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": functions}}


def field_names(
    chat: ChatParameters, conversation: Sequence[JsonObject], new_items: Sequence[JsonObject], earlier: str
) -> FieldNames:
    """Return the names that fields of the chat parameters have in the client's request, for error messages. `chat` was
    translated from the request, and `conversation` has the items of its prompt.

    `new_items` are the items in the request's field `input`. `earlier` is the name of the field that refers to all
    other items of the conversation, such as `previous_response_id`.
    """
    location_of = _location_of(new_items, earlier)

    def media_locations() -> Iterator[MediaLocation]:
        for item in conversation:
            field, parts = parts_of(item)
            base = location_of(item)
            for index, part in enumerate(parts):
                if is_medium(part):
                    location = f"{base}.{field}[{index}]"
                    yield location, f"{location}.{data_of(part)[0]}"

    # Several items may be one message.
    messages = {f"messages[{index}]": f"input (message {index + 1})" for index in range(len(chat.messages))}
    return FieldNames({**_NAMES, **messages, **media_names(chat.messages, media_locations())})


def new_response(
    body: ResponsesRequest, *, model: str, sampling: Sampling, created: int, is_stored: bool
) -> JsonObject:
    """Return a new response object without output, for a request that an engine has accepted. It repeats fields of the
    request, and has the id of the model and the sampling parameters that are in use. `created` is the time of creation
    in seconds since 1970. `is_stored` says whether the response will be stored.
    """
    fields = body.model_dump(include={"reasoning", "text", "tool_choice"}, exclude_none=True, by_alias=True)
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "queued" if body.background else "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        "background": bool(body.background),
        **({} if body.conversation is None else {"conversation": {"id": body.conversation_id}}),
        "frequency_penalty": sampling.frequency_penalty,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": sampling.presence_penalty,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": _text_or_none(body.prompt_cache_key),
        "reasoning": {"effort": None, "summary": None, **fields.get("reasoning", {})},
        "safety_identifier": _text_or_none(body.safety_identifier),
        "service_tier": "default",
        "store": is_stored,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium", **fields.get("text", {})},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": _repeated(body.tools or []),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": body.truncation or "disabled",
        "user": _text_or_none(body.user),
    }


def name_conversions(
    leniency: Leniency, conversation: Sequence[JsonObject], new_items: Sequence[JsonObject], earlier: str
) -> None:
    """Report to `leniency`, which tells the client by headers, the items of a conversation that the prompt leaves out,
    and those that it contains in another form than with OpenAI's API.

    `new_items` are the items in the request's field `input`. `earlier` is the name of the field that refers to all
    other items of the conversation, such as `previous_response_id`.
    """
    location_of = _location_of(new_items, earlier)
    leniency.convert(f"{location_of(item)} ({form})" for item, form in conversions(conversation))
    leniency.note(f"{location_of(item)} ({kind})" for item, kind in without_effect(conversation))


def _location_of(new_items: Sequence[JsonObject], earlier: str) -> Callable[[JsonObject], str]:
    """Return a function that says where an item of the conversation comes from, for reports to the client. An item of
    `new_items` is at a place such as `input[3]`. Any other item is named by its id and the field `earlier`, which
    refers to the earlier turns.
    """
    locations = {id(item): f"input[{index}]" for index, item in enumerate(new_items)}
    return lambda item: locations.get(id(item)) or f"{earlier} (item {item['id']})"


def tools_by_name(body: ResponsesRequest, conversation: Sequence[JsonObject] = ()) -> dict[str, ResponseTool]:
    """Return the tools that the answer to a request may call, keyed by their names in the prompt. Items of
    `conversation` may add tools to those of the request.
    """
    return OfferedTools(body, conversation).by_name()


def _repeated(tools: Sequence[ResponseTool]) -> list[JsonObject]:
    """Return the tools of a request as JSON, for the response object, which repeats them. Tools of a namespace are
    within an entry for this namespace, as in OpenAI's API. Credentials for MCP tool servers are left out.
    """
    repeated: list[JsonObject] = []
    for tool in tools:
        if not isinstance(tool, NamespacedTool):
            repeated.append(tool.model_dump(exclude={"authorization", "headers"}, exclude_none=True))
            continue
        without = {"namespace", "namespace_description"}
        # OpenAI's functions have a null for each of their older fields.
        without |= {field for field in ("allowed_callers", "defer_loading") if getattr(tool, field) is None}
        named = tool.model_dump(exclude=without, exclude_none=not isinstance(tool, FunctionTool))
        if tool.namespace is None:
            repeated.append(named)
            continue
        space = {"type": "namespace", "name": tool.namespace, "description": tool.namespace_description or ""}
        if not repeated or repeated[-1]["type"] != "namespace" or repeated[-1]["name"] != tool.namespace:
            repeated.append({**space, "tools": []})
        repeated[-1]["tools"].append(named)
    return repeated


def _text_or_none(value: Any) -> str | None:
    """Return `value` if it is a text, otherwise None. It is for fields of the response object in which clients expect
    no other type, although requests may have any value in them.
    """
    return value if isinstance(value, str) else None


def compacting(body: CompactRequest, conversation: Sequence[JsonObject]) -> ChatParameters:
    """Return the chat parameters of the request with which the model is asked for a summary of a conversation: the
    items of the conversation, and then the instruction to summarize. `body` is the client's request to compact it.
    Raises InvalidField for the same reasons as `to_chat`.
    """
    items = [*conversation, message("user", [text_part(_COMPACT)])]
    fields = {"model": body.model, "input": "", "instructions": body.instructions}
    return to_chat(ResponsesRequest.model_validate(fields), items)


def compacted(conversation: Sequence[JsonObject], summary: str) -> list[JsonObject]:
    """Return the items that replace a conversation after it was compacted: the user's messages, and an item with
    `summary`, the model's summary of the whole conversation.
    """
    users = [item for item in conversation if item["type"] == "message" and item["role"] == "user"]
    return [*users, new_item("compaction", encrypted_content=encrypted(summary))]


def shortened(conversation: Sequence[JsonObject], share: float) -> list[JsonObject] | None:
    """Return the newest part of a conversation whose prompt is too long; None if nothing can be dropped. `share` is the
    fraction of the conversation's size, between 0 and 1, that should remain at most; more remains if that is not
    possible.

    Instructions at the beginning and the user's last message are kept, and calls are not separated from their outputs.
    """
    first = next(
        (position for position, item in enumerate(conversation) if item.get("role") not in _INSTRUCTION_ROLES), 0
    )
    head, tail = list(conversation[:first]), conversation[first:]
    sizes = [_size(item) for item in tail]
    remaining = list(accumulate(reversed(sizes), initial=0))[::-1]
    last = max((position for position, item in enumerate(tail) if item.get("role") == "user"), default=None)

    def users_last(position: int) -> int | None:
        """Return the position of the user's last message if it comes before `position`, so that a cut there would drop
        it; otherwise None.
        """
        return last if last is not None and last < position else None

    def size(position: int) -> int:
        user = users_last(position)
        return remaining[position] + (0 if user is None else sizes[user])

    cuts = [position for position in _cuts(tail) if size(position) < remaining[0]]
    # Prefer complete turns: many templates require the user's message first.
    turns = [position for position in cuts if tail[position].get("role") == "user"]
    target = share * remaining[0]
    position = next(
        (position for position in [*turns, *cuts] if size(position) <= target), min(cuts, key=size, default=None)
    )
    if position is None:
        return None
    user = users_last(position)
    return [*head, *([] if user is None else [tail[user]]), *tail[position:]]


_INSTRUCTION_ROLES = ("system", "developer")
# Characters of text that take about as many tokens as an image.
_IMAGE_SIZE = 2000


def _size(item: JsonObject) -> int:
    """Return the size of an item in characters of JSON, as a measure of its tokens. An image or audio counts as 2000
    characters.
    """
    media = [data_of(part)[1] for part in parts_of(item)[1] if is_medium(part)]
    return len(json.dumps(item, ensure_ascii=False)) + sum(_IMAGE_SIZE - len(data) for data in media)


def _cuts(items: Sequence[JsonObject]) -> Iterator[int]:
    """Yield the positions at which the beginning of a conversation may be cut off, so that the item at the position
    becomes the first. They are not between a call and its output, nor within the reasoning and calls of one turn, and 0
    is not among them.
    """
    open_calls: set[str | None] = set()
    for position, item in enumerate(items):
        # Reasoning and calls of one turn are adjacent.
        is_within = (
            position > 0 and item["type"] != "message" and items[position - 1]["type"] in ("reasoning", item["type"])
        )
        if position and not open_calls and not is_output(item) and not is_within:
            yield position
        if is_output(item):
            open_calls.discard(item.get("call_id"))
        elif is_call(item):
            open_calls.add(item["call_id"])
