"""Translates requests of Anthropic's Messages API to chat parameters (ChatParameters), the form of a chat request that
all APIs of this server share.

`Translation` translates a whole body, and `Turns` its conversation: turns and their content blocks become chat messages
in OpenAI's format.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from genai_server.apis.messages.schemas import (
    AnthropicMessage,
    Base64Source,
    Block,
    CompactionBlock,
    ContentSource,
    CountTokensRequest,
    DocumentBlock,
    ImageBlock,
    McpToolResultBlock,
    McpToolUseBlock,
    MessagesRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolAdditionBlock,
    ToolDefinition,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from genai_server.apis.messages.tools import OfferedTools
from genai_server.apis.shared.chat_history import MediaLocation, media_names, note
from genai_server.errors import InvalidField, ThreadUnsupported
from genai_server.generation.parameters.chat_messages import MAX_MESSAGES, MAX_TOOLS, ChatParameters, Tool
from genai_server.generation.parameters.sampling_parameters import SamplingFields
from genai_server.generation.tool_loop import ServedTool, ServedTools, function_name
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import Leniency

# What a tool's result may consist of, too.
_Part = Block | ToolReferenceBlock


@dataclass(frozen=True)
class _Located:
    """A content block with its location in the body: `message` is the path of its message, such as `messages[3]`, and
    `index` is its position within the message.
    """

    message: str
    index: int
    block: Block

    @property
    def place(self) -> str:
        return f"{self.message}.content[{self.index}]"


class Turns:
    """Translates the conversation of a body to chat messages in OpenAI's format, when it is created. Its attribute
    `messages` has these messages, each with the path in the body from which it comes. `converted` and `left_out` have
    the locations of what the messages contain in another form or not at all.

    Adjacent messages of the same role form one turn, as in Anthropic's API, and their texts are joined by newlines.
    Each tool result becomes a message of its own. `tools` are the tools of the request. `served` are the names of the
    MCP tool servers that it may use; earlier calls of tools on other servers become texts.
    """

    def __init__(self, body: CountTokensRequest, tools: OfferedTools, served: Collection[str] = ()) -> None:
        self._tools = tools
        # The names of the tool servers whose earlier calls are calls of functions. Those of others are texts.
        self._served = served
        # Names of tools, keyed by the ids of their calls.
        self._called: dict[str, str] = {}
        # Locations of what the messages have in another form, each with the form, and of what they do not have.
        self.converted: list[str] = []
        self.left_out: list[str] = []
        self.messages = list(self._messages(body))

    def _messages(self, body: CountTokensRequest) -> Iterator[tuple[str, JsonObject]]:
        for role, group in groupby(_shown_messages(body), key=lambda entry: entry[1].role):
            messages = list(group)
            blocks = [
                _Located(location, index, block)
                for location, message in messages
                for index, block in enumerate(message.blocks)
            ]
            if role == "assistant":
                for part in _between_results(self._with_notes(blocks)):
                    if part and isinstance(result := part[0].block, McpToolResultBlock):
                        yield part[0].place, self._served_result(result)
                    else:
                        yield messages[0][0], self._assistant(part)
                continue
            for is_result, run in groupby(blocks, key=self._answers_a_call):
                located = list(run)
                if is_result:
                    yield from ((entry.place, self._result(entry)) for entry in located)
                else:
                    yield located[0].message, {"role": role, "content": self._content(located)}

    def _answers_a_call(self, located: _Located) -> bool:
        return isinstance(located.block, ToolResultBlock) and located.block.tool_use_id in self._called

    def _assistant(self, blocks: Sequence[_Located]) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": self._content(blocks)}
        if thoughts := [located.block.thinking for located in blocks if isinstance(located.block, ThinkingBlock)]:
            message["reasoning_content"] = "\n".join(thoughts)
        self.left_out += [
            f"{located.place} (redacted_thinking)"
            for located in blocks
            if isinstance(located.block, RedactedThinkingBlock)
        ]
        calls = [located.block for located in blocks if isinstance(located.block, ToolUseBlock | McpToolUseBlock)]
        if calls:
            self._called |= {call.id: _function_name(call) for call in calls}
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": _function_name(call), "arguments": json.dumps(call.input, ensure_ascii=False)},
                }
                for call in calls
            ]
        return message

    def _with_notes(self, blocks: Sequence[_Located]) -> list[_Located]:
        """Return the blocks of an assistant's turn, in which calls of tools on MCP tool servers that the request does
        not use, and the results of such calls, are replaced by text blocks that describe them. Their locations are
        added to the attribute `converted`, for the report to the client.
        """
        noted: list[_Located] = []
        call_ids: set[str] = set()
        for located in blocks:
            block = located.block
            if isinstance(block, McpToolUseBlock) and block.server_name in self._served:
                call_ids.add(block.id)
            elif isinstance(block, McpToolUseBlock) or (
                isinstance(block, McpToolResultBlock) and block.tool_use_id not in call_ids
            ):
                self.converted.append(f"{located.place} ({block.type} as text)")
                text = note(block.model_dump(exclude={"cache_control"}, exclude_none=True))
                located = replace(located, block=_text(text))
            noted.append(located)
        return noted

    def _served_result(self, block: McpToolResultBlock) -> JsonObject:
        """Return the chat message for an `mcp_tool_result` block: the result of a call in an earlier turn that this
        server, or another one, has run for the model.
        """
        id = block.tool_use_id
        return {"role": "tool", "tool_call_id": id, "name": self._called[id], "content": block.text}

    def _result(self, located: _Located) -> JsonObject:
        """Return the chat message for a `tool_result` block, the result of a tool call that the client has run. The
        call must be in the conversation.
        """
        block = located.block
        assert isinstance(block, ToolResultBlock)
        id = block.tool_use_id
        return {"role": "tool", "tool_call_id": id, "name": self._called[id], "content": self._result_content(located)}

    def _result_content(self, located: _Located) -> str | list[JsonObject]:
        block = located.block
        assert isinstance(block, ToolResultBlock)
        content: str | list[JsonObject] = ""
        if isinstance(block.content, str):
            content = block.content
        elif block.content:
            content = _joined(self._flat(located.place, block.content))
        if not block.is_error:
            return content
        return f"Error: {content}" if isinstance(content, str) else [_text_part("Error: "), *content]

    def _content(self, blocks: Sequence[_Located]) -> str | list[JsonObject]:
        """Return the content of the chat message for the blocks of a turn, from their texts and images. Thinking and
        tool calls are not part of it.
        """
        flat: list[TextBlock | ImageBlock] = []
        for located in blocks:
            if isinstance(located.block, ToolResultBlock):
                flat += self._result_without_call(located)
            else:
                flat += self._simple(located.place, located.block)
        return _joined(flat)

    def _result_without_call(self, located: _Located) -> list[TextBlock | ImageBlock]:
        """Return the texts and images that the model reads for a `tool_result` block whose call is not in the
        conversation, for example because the client has cut off the beginning. A first text says that it is the result
        of a tool. The location of the block is added to the attribute `converted`, for the report to the client.
        """
        block = located.block
        assert isinstance(block, ToolResultBlock)
        self.converted.append(f"{located.place} (tool_result without its call, as text)")
        parts = [_text("[tool_result]"), *([_text("Error:")] if block.is_error else ())]
        if isinstance(block.content, str):
            return [*parts, _text(block.content)]
        return [*parts, *self._flat(located.place, block.content or ())]

    def _flat(self, location: str, parts: Sequence[_Part]) -> list[TextBlock | ImageBlock]:
        """Return the texts and images for the content `parts` of a tool result. `location` is the location of the
        result in the body. Adjacent references to tools become one text that defines these tools; their locations are
        added to the attribute `converted`, for the report to the client.
        """
        flat: list[TextBlock | ImageBlock] = []
        located = [(f"{location}.content[{index}]", part) for index, part in enumerate(parts)]
        for is_reference, run in groupby(located, key=lambda entry: isinstance(entry[1], ToolReferenceBlock)):
            group = list(run)
            if is_reference:
                flat.append(_text(self._references(group)))
                continue
            for inner, part in group:
                flat += self._simple(inner, part)
        return flat

    def _references(self, located: Sequence[tuple[str, _Part]]) -> str:
        names = [part.tool_name for _, part in located if isinstance(part, ToolReferenceBlock)]
        self.converted += [f"{location} (tool_reference as text)" for location, _ in located]
        return self._tools.introduce(names)

    def _simple(self, location: str, block: _Part) -> list[TextBlock | ImageBlock]:
        """Return the texts and images that the model reads for a content block that is not a tool result. The list is
        empty for blocks without texts, such as thinking and tool calls. `location` is the location of the block in the
        body; it is added to the attribute `converted`, for the report to the client, if the block becomes another kind
        of text.
        """
        match block:
            case TextBlock() | ImageBlock():
                return [block]
            case DocumentBlock():
                return block.blocks
            case CompactionBlock(content=content):
                self.converted.append(f"{location} (compaction as text)")
                return [_text(content)] if content else []
            case ToolAdditionBlock(tool=tool):
                self.converted.append(f"{location} (tool_addition as text)")
                name = tool.definition.name if isinstance(tool, ToolDefinition) else tool.name
                return [_text(f"[tool_addition]\n{self._tools.introduce([name])}")]
            case ToolRemovalBlock(tool=removed):
                self.converted.append(f"{location} (tool_removal as text)")
                return [_text(note({"type": "tool_removal", "name": removed.name}))]
        return []


def _between_results(blocks: Sequence[_Located]) -> Iterator[list[_Located]]:
    """Split the blocks of an assistant's turn at the results of MCP tools, because each result becomes a chat message.
    Yields lists of blocks: each result alone, and the blocks between results together.
    """
    part: list[_Located] = []
    for located in blocks:
        if isinstance(located.block, McpToolResultBlock):
            if part:
                yield part
            yield [located]
            part = []
        else:
            part.append(located)
    if part or not blocks:
        yield part


def _function_name(call: ToolUseBlock | McpToolUseBlock) -> str:
    """Return the name that the called tool has in prompts. For a tool of an MCP tool server, it contains the name of
    the server.
    """
    return function_name(call.server_name, call.name) if isinstance(call, McpToolUseBlock) else call.name


def _shown_messages(body: CountTokensRequest) -> Iterator[tuple[str, AnthropicMessage]]:
    """Yield the messages that the model reads, each with its path in the body: the system prompt as a message of the
    role system, and then the messages of the body. Empty system messages are left out, and so are messages that their
    field `clear_at` removes because the user has sent another message after them.
    """
    if body.system:
        content: str | list[Block] = body.system if isinstance(body.system, str) else [*body.system]
        yield "system", AnthropicMessage(role="system", content=content, clear_at=None)
    last_of_user = max((index for index, message in enumerate(body.messages) if message.role == "user"), default=-1)
    for index, message in enumerate(body.messages):
        is_over = message.clear_at == "next_user_message" and index < last_of_user
        if not is_over and not (message.role == "system" and message.content == ""):
            yield f"messages[{index}]", message


def _joined(flat: Sequence[TextBlock | ImageBlock]) -> str | list[JsonObject]:
    """Return the content of a chat message for texts and images. Without images, it is one text, in which the texts are
    joined by newlines. With images, it is a list of content parts, in which the texts between two images are joined.
    """
    if not any(isinstance(block, ImageBlock) for block in flat):
        return _joined_texts(flat)
    parts: list[JsonObject] = []
    for is_image, run in groupby(flat, key=lambda block: isinstance(block, ImageBlock)):
        group = list(run)
        if is_image:
            sources = [block.source for block in group if isinstance(block, ImageBlock)]
            parts += [{"type": "image_url", "image_url": {"url": _url(source)}} for source in sources]
        elif text := _joined_texts(group):
            parts.append(_text_part(text))
    return parts


def _joined_texts(blocks: Sequence[TextBlock | ImageBlock]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _text(text: str) -> TextBlock:
    return TextBlock.model_construct(type="text", text=text)


def _text_part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _url(source: Base64Source | UrlSource) -> str:
    return source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"


def media_locations(body: CountTokensRequest) -> Iterator[MediaLocation]:
    """Yield where each image of a body is, in the order in which the chat messages contain the images: the path of its
    block, and the path of the block's field with the data or URL. Error messages about images use these paths.
    """
    for location, message in _shown_messages(body):
        if location != "system":
            yield from _image_locations(message.blocks, f"{location}.content")


def _image_locations(blocks: Sequence[_Part], path: str) -> Iterator[MediaLocation]:
    for index, block in enumerate(blocks):
        location = f"{path}[{index}]"
        match block:
            case ImageBlock():
                yield location, f"{location}.source.{'data' if block.source.type == 'base64' else 'url'}"
            case ToolResultBlock(content=list(content)):
                yield from _image_locations(content, f"{location}.content")
            case DocumentBlock(source=ContentSource(content=list(content))):
                yield from _image_locations(content, f"{location}.source.content")


_CONTINUE = "continue_final_message"
_FORMAT = "response_format"
_SCHEMA = f"{_FORMAT}.json_schema"
_PARALLEL = "parallel_tool_calls"
_EFFORT, _BUDGET = "reasoning_effort", "thinking_token_budget"


class Translation:
    """The translation of a body of the Messages API to chat parameters, the form of a chat request that all APIs of
    this server share. It happens when the object is created. The attribute `chat` then has the chat parameters, `tools`
    the tools that this server runs, and `names` the names that fields of the chat parameters have in the body, for
    error messages.

    `served` has the tools of the MCP tool servers that the request may use, keyed by the name of the server. Creating
    the object raises ThreadUnsupported if the request asks to store the conversation, and InvalidField for errors that
    concern the whole conversation, such as too many turns.
    """

    def __init__(self, body: CountTokensRequest, served: Mapping[str, Sequence[ServedTool]] | None = None) -> None:
        if isinstance(body, MessagesRequest) and body.thread is not None:
            raise ThreadUnsupported(
                "thread is not supported: this server does not store Anthropic conversations", param="thread"
            )
        tools = OfferedTools(body)
        functions = tools.callable
        own_names = {function["name"] for function in functions}
        served_tools = [tool for group in (served or {}).values() for tool in group if tool.name not in own_names]
        more = [tool.function for tool in served_tools]
        # The tools that the server runs. Functions of the body with the name of one replace it.
        self.tools = ServedTools({tool.name: tool for tool in served_tools})
        turns = Turns(body, tools, served or {})
        paths = [path for path, _ in turns.messages]
        if len(paths) > MAX_MESSAGES:
            raise InvalidField(
                "messages",
                f"may have at most {MAX_MESSAGES} turns, counting system and each tool result",
                given=len(paths),
            )
        self.chat = ChatParameters.model_validate(
            {
                "model": body.model,
                "messages": [message for _, message in turns.messages],
                **_tools(body, [*functions, *more]),
                **_output(body),
                **(_generation(body) if isinstance(body, MessagesRequest) else {}),
                "chat_template_kwargs": {_CONTINUE: True} if _is_continued(body) else None,
            }
        )
        if tools.listed != functions:
            self.chat.list_tools([Tool.model_validate(tool) for tool in _as_tools([*tools.listed, *more])])
        # The body's names for fields of the chat.
        self.names = _names(body, paths, media_names(self.chat.messages, media_locations(body)))
        self._converted = turns.converted
        self._left_out = turns.left_out
        if tools.are_all_deferred:
            self._left_out += [f"tools[{index}].defer_loading" for index, _ in enumerate(body.tools or [])]

    def report(self, leniency: Leniency) -> None:
        """Report to `leniency`, which tells the client by headers, the parts of the body that the chat parameters
        contain in another form, and those that were left out.
        """
        leniency.note(self._left_out)
        leniency.convert(self._converted)


def _names(body: CountTokensRequest, paths: Sequence[str], images: Mapping[str, str]) -> FieldNames:
    """Return the names that fields of the chat parameters have in the body, for error messages.

    `paths` are the paths in the body from which the chat messages come, in the order of the messages. `images` maps
    paths of images in the chat parameters to paths in the body.
    """
    effort_comes_from_thinking = body.output_config is None or body.output_config.effort is None
    output_format = "output_format" if body.output_format is not None else "output_config.format"
    table = {
        "chat_template_kwargs": paths[-1],
        _EFFORT: "thinking.type" if effort_comes_from_thinking else "output_config.effort",
        _BUDGET: "thinking.budget_tokens",
        _FORMAT: output_format,
        _SCHEMA: output_format,
        _PARALLEL: "tool_choice.disable_parallel_tool_use",
        **{f"messages[{index}]": path for index, path in enumerate(paths)},
        **images,
    }
    return FieldNames(table, {_EFFORT: "enabled"} if effort_comes_from_thinking else {})


def _generation(body: MessagesRequest) -> JsonObject:
    sampling = {name: getattr(body, name) for name in SamplingFields.model_fields}
    more = {"max_tokens": body.max_tokens, "device": body.device, "stop": body.stop_sequences or None}
    return {**sampling, **more}


def _is_continued(body: CountTokensRequest) -> bool:
    """Return whether the answer is to continue the body's last message: it has the role assistant, and so is the
    beginning of the answer. False if it contains tool calls or their results, since these are complete.
    """
    last = body.messages[-1]
    calls = ("tool_use", "mcp_tool_use", "mcp_tool_result")
    return last.role == "assistant" and all(block.type not in calls for block in last.blocks)


def _tools(body: CountTokensRequest, functions: list[JsonObject]) -> JsonObject:
    if len(functions) > MAX_TOOLS:
        raise InvalidField("messages", f"may define tools until there are {MAX_TOOLS}", given=len(functions))
    fields: JsonObject = {"tools": _as_tools(functions) or None}
    choice = body.tool_choice
    if choice is None:
        return fields
    if choice.disable_parallel_tool_use:
        fields[_PARALLEL] = False
    if choice.name is not None:
        if all(choice.name != function["name"] for function in functions):
            raise InvalidField("tool_choice.name", "must be the name of one of tools", given=choice.name)
        return {**fields, "tool_choice": {"type": "function", "function": {"name": choice.name}}}
    if choice.type == "any" and not functions:
        raise InvalidField("tool_choice", "of type any is only allowed with a tool that is loaded and not removed")
    return {**fields, "tool_choice": {"any": "required"}.get(choice.type, choice.type)}


def _as_tools(functions: list[JsonObject]) -> list[JsonObject]:
    return [{"type": "function", "function": function} for function in functions]


def _output(body: CountTokensRequest) -> JsonObject:
    """Return the fields of the chat parameters for the reasoning effort, the maximum number of reasoning tokens and the
    format of the answer.

    If the request has no effort, it is "high" if thinking is enabled, as in Anthropic's API, and otherwise None, which
    stands for the model's default. It is always "none" if thinking is off.
    """
    thinking, config = body.thinking, body.output_config
    effort: str | None = config.effort if config is not None else None
    if thinking is not None and thinking.is_off:
        effort = "none"
    elif thinking is not None and thinking.type == "enabled":
        effort = effort or "high"
    fields: JsonObject = {_EFFORT: effort, _BUDGET: None if thinking is None else thinking.budget_tokens}
    output_format = body.output_format or (config.format if config is not None else None)
    if output_format is not None:
        schema = {"name": "output", "schema": output_format.schema_}
        fields[_FORMAT] = {"type": "json_schema", "json_schema": schema}
    return fields
