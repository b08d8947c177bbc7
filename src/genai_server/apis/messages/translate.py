"""Translates requests of Anthropic's Messages API to chat parameters."""

from collections.abc import Mapping, Sequence

from genai_server.apis.messages.schemas import CountTokensRequest, MessagesRequest
from genai_server.apis.messages.tools import OfferedTools
from genai_server.apis.messages.turns import Turns, media_locations
from genai_server.apis.shared.media_locations import media_names
from genai_server.errors import InvalidField, ThreadUnsupported
from genai_server.generation.parameters.chat_messages import MAX_MESSAGES, MAX_TOOLS, ChatParameters, Tool
from genai_server.generation.parameters.sampling_parameters import SamplingFields
from genai_server.generation.tool_loop import ServedTool, ServedTools
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import Leniency

_CONTINUE = "continue_final_message"
_FORMAT = "response_format"
_SCHEMA = f"{_FORMAT}.json_schema"
_PARALLEL = "parallel_tool_calls"
_EFFORT, _BUDGET = "reasoning_effort", "thinking_token_budget"


class Translation:
    """Translates a body of the Messages API when it is created. The chat parameters are then in the attribute `chat`,
    the tools that the server runs in `tools`, and the body's names for fields of the chat in `names`.

    `served` has the tools of the tool servers that the request may use, by the name of the server. Raises
    ThreadUnsupported, and InvalidField for errors that concern the whole conversation.
    """

    def __init__(self, body: CountTokensRequest, served: Mapping[str, Sequence[ServedTool]] | None = None) -> None:
        if isinstance(body, MessagesRequest) and body.thread is not None:
            raise ThreadUnsupported(
                "thread is not supported: this server does not store Anthropic conversations", param="thread"
            )
        tools = OfferedTools(body)
        functions = tools.callable
        own = {function["name"] for function in functions}
        ours = [tool for each in (served or {}).values() for tool in each if tool.name not in own]
        more = [tool.function for tool in ours]
        # The tools that the server runs. Functions of the body with the name of one replace it.
        self.tools = ServedTools({tool.name: tool for tool in ours})
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
        """Report the parts of the body that were converted to another form in the chat parameters, and the parts that
        were left out.
        """
        leniency.note(self._left_out)
        leniency.convert(self._converted)


def _names(body: CountTokensRequest, paths: Sequence[str], images: Mapping[str, str]) -> FieldNames:
    """The names that fields of the chat parameters have in the body, for error messages.

    `paths` are the paths in the body from which the chat's messages come, in order. `images` maps paths of images in
    the chat to paths in the body.
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
    """Whether the answer continues the text of the last message, which the assistant began. False if the assistant's
    message contains tool calls, since these are complete.
    """
    last = body.messages[-1]
    calls = ("tool_use", "mcp_tool_use", "mcp_tool_result")
    return last.role == "assistant" and all(block.type not in calls for block in last.blocks)


def _tools(body: CountTokensRequest, functions: list[JsonObject]) -> JsonObject:
    if len(functions) > MAX_TOOLS:
        raise InvalidField("messages", f"may define tools until there are {MAX_TOOLS}", given=len(functions))
    found: JsonObject = {"tools": _as_tools(functions) or None}
    choice = body.tool_choice
    if choice is None:
        return found
    if choice.disable_parallel_tool_use:
        found[_PARALLEL] = False
    if choice.name is not None:
        if all(choice.name != function["name"] for function in functions):
            raise InvalidField("tool_choice.name", "must be the name of one of tools", given=choice.name)
        return {**found, "tool_choice": {"type": "function", "function": {"name": choice.name}}}
    if choice.type == "any" and not functions:
        raise InvalidField("tool_choice", "of type any is only allowed with a tool that is loaded and not removed")
    return {**found, "tool_choice": {"any": "required"}.get(choice.type, choice.type)}


def _as_tools(functions: list[JsonObject]) -> list[JsonObject]:
    return [{"type": "function", "function": function} for function in functions]


def _output(body: CountTokensRequest) -> JsonObject:
    """The chat parameters for reasoning effort, reasoning budget and response format.

    Without an effort, the model's default applies, or "high" if thinking is enabled, as in Anthropic's API.
    """
    thinking, config = body.thinking, body.output_config
    effort: str | None = config.effort if config is not None else None
    if thinking is not None and thinking.is_off:
        effort = "none"
    elif thinking is not None and thinking.type == "enabled":
        effort = effort or "high"
    found: JsonObject = {_EFFORT: effort, _BUDGET: None if thinking is None else thinking.budget_tokens}
    output_format = body.output_format or (config.format if config is not None else None)
    if output_format is not None:
        schema = {"name": "output", "schema": output_format.schema_}
        found[_FORMAT] = {"type": "json_schema", "json_schema": schema}
    return found
