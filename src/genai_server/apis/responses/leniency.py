"""What the Responses and Conversations APIs convert or remove in a request instead of refusing the request.

`convert` and `convert_items` turn content parts of unknown types in the conversation history into text. The tables
`LEFT_OUT` and `LEFT_OUT_OF_ITEMS` say what is removed because this server does not support it, such as tools that only
OpenAI's servers run, files and encrypted content of other servers. With the setting GENAI_STRICT nothing is removed,
and such requests are refused.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

from genai_server.apis.responses.item_schemas import InputItem
from genai_server.apis.responses.items import is_readable
from genai_server.apis.responses.tools import ItemTool, McpTool
from genai_server.apis.shared.chat_history import convert_parts
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import (
    RemovalRules,
    history_of,
    nameable,
    objects_at,
    remove,
    remove_tools,
    remove_unknown_keys,
    replace_media,
)

# Unless the client searches for tools, all are shown to the model.
_DEFERRED = ("tools[].defer_loading", "tools[].tools[].defer_loading")
# Tools that OpenAI's servers run, or that return images. Of the last two the client may run others of the same type.
SERVER_TOOLS = (
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "programmatic_tool_calling",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "shell",
    "tool_search",
)
MEDIA = {"input_file": "file"}
# Types of items whose content may be a list of parts, and the types of parts in each of the fields that has them.
_WITH_PARTS = ("message", "function_call_output", "custom_tool_call_output", None)
_PARTS = {
    "output": ("input_text", "input_image", "input_audio", *MEDIA),
    "content": ("input_text", "input_image", "input_audio", "output_text", *MEDIA),
}
_TYPES_OF_TOOLS = frozenset(
    get_args(model.model_fields["type"].annotation)[0] for model in get_args(get_args(ItemTool)[0])
)
_FOREIGN_SUMMARY = "[summary of earlier turns left out: another server has encrypted it]"


def convert(body: Any) -> list[str]:
    """Convert content parts of unknown types in the field `input` of a Responses API body to text, except in the user's
    last message. Changes `body` in place. Returns the location and former type of each changed part, such as
    `input[3].content[0] (refusal as text)`.
    """
    return _convert(body, "input")


def convert_items(body: Any) -> list[str]:
    """Convert content parts of unknown types in the field `items` of a Conversations API body to text. Changes `body`
    in place. Returns the location and former type of each changed part, such as `items[3].content[0] (refusal as
    text)`.
    """
    return _convert(body, "items")


def _leave_out_tools(body: Any) -> list[str]:
    """Remove what this server does not support from the field `tools` of a body: tools that only OpenAI's servers can
    run, and fields without effect. Also replaces each namespace, a named group of tools, by its tools. Changes `body`
    in place. Returns the location of each removed tool or field.
    """
    locations = []
    if not any(
        tool.get("type") == "tool_search" and _is_run_by_client(tool) for _, tool in objects_at(body, "tools[]")
    ):
        locations = remove(body, *_DEFERRED)
    locations += remove_tools(body, SERVER_TOOLS.__contains__, but=_is_run_by_client)
    for location, tool in objects_at(body, "tools[]"):
        if tool.get("type") == "mcp":
            locations += [f"{location}.{key}" for key in remove_unknown_keys(tool, "", McpTool)]
    if any(tool.get("type") == "namespace" for _, tool in objects_at(body, "tools[]")):
        body["tools"] = [inner for tool in body["tools"] for inner in _flattened(tool)]
    return locations


def _is_run_by_client(tool: JsonObject) -> bool:
    """Return whether the client runs a tool. Tools of the types tool_search and shell are run either by the client or
    by OpenAI's servers, according to their fields `execution` and `environment`. For all other types the result is
    False.
    """
    if tool["type"] == "tool_search":
        return tool.get("execution") == "client"
    environment = tool.get("environment")
    kind = environment.get("type") if isinstance(environment, dict) else None
    return tool["type"] == "shell" and kind in (None, "local")


def _convert(body: Any, field: str) -> list[str]:
    history = _history(body, field)
    return [
        location
        for name, known_types in _PARTS.items()
        for location in convert_parts(history, f"{field}[].{name}[]", known_types, "input_text")
    ]


def _history(body: Any, field: str) -> JsonObject:
    """Return a body with only the list `field`, for changes of the conversation history. Items that must not be
    changed, such as the user's last message, are replaced by empty objects, so that the locations of the others stay
    the same. The other items are the objects of `body` itself.

    If `field` is "items", as in the Conversations API, all items belong to the history.
    """
    return _with_parts(body if field == "items" else history_of(body, field), field)


def _leave_out_of_items(body: Any, field: str) -> list[str]:
    paths = [f"{field}[].{name}[]" for name in _PARTS]
    locations = replace_media(_with_parts(body, field), MEDIA, "input_text", *paths)
    for path in paths:
        for location, part in objects_at(_history(body, field), path):
            if part.get("type") == "input_image" and part.get("file_id") is not None:
                locations += _leave_out_file(location, part)
    locations += _leave_out_encrypted(body, field)
    for location, item in objects_at(body, f"{field}[]"):
        locations += _leave_out_loaded_tools(location, item)
    return locations


def _leave_out_file(location: str, image: JsonObject) -> Iterator[str]:
    """Remove the reference to a stored file (`file_id`) from an image part, in place. An image without a URL becomes a
    text that says that it was left out. `location` is the location of the part in the body. Yields the location of what
    was removed.
    """
    if image.get("image_url"):
        yield from (f"{location}.{field}" for field in remove(image, "file_id"))
    else:
        yield from (
            f"{location}{suffix}" for suffix in replace_media(image, {"input_image": "image"}, "input_text", "")
        )


def _with_parts(body: Any, field: str) -> JsonObject:
    """Return a body with only the list `field`, in which items of types that have no content parts are replaced by
    empty objects, so that the locations of the others stay the same. The result is empty if `body` has no such list.
    """
    items = body.get(field) if isinstance(body, dict) else None
    if not isinstance(items, list):
        return {}
    has_parts = [isinstance(item, dict) and item.get("type") in _WITH_PARTS for item in items]
    return {field: [item if fits else {} for item, fits in zip(items, has_parts, strict=True)]}


def _leave_out_encrypted(body: Any, field: str) -> Iterator[str]:
    """Remove encrypted content that another server has created from the items in the list `field`, in place. Reasoning
    items lose the field `encrypted_content`. Compaction items, summaries that consist of this field, become a message
    that says that a summary was left out. Yields the location of each removed field.
    """
    for location, item in objects_at(body, f"{field}[]"):
        kind, content = item.get("type"), item.get("encrypted_content")
        if kind not in ("reasoning", "compaction") or not isinstance(content, str) or is_readable(content):
            continue
        if kind == "reasoning":
            del item["encrypted_content"]
        else:
            item.clear()
            item.update(type="message", role="user", content=_FOREIGN_SUMMARY)
        yield f"{location}.encrypted_content"


def _is_loadable(tool: JsonObject) -> bool:
    """Return whether this server supports a tool that an item of the conversation adds, so that the model may call it.
    Tools that only OpenAI's servers run are not supported.
    """
    kind = tool["type"]
    return kind in _TYPES_OF_TOOLS and (kind not in SERVER_TOOLS or _is_run_by_client(tool))


def _leave_out_loaded_tools(location: str, item: JsonObject) -> Iterator[str]:
    """Remove tools of unsupported types from an item that adds tools to the conversation, in place. Other items are not
    changed. `location` is the item's location in the body. Yields the location and type of each removed tool.
    """
    tools = item.get("tools")
    if item.get("type") not in ("tool_search_output", "additional_tools") or not isinstance(tools, list):
        return
    loadable = []
    for index, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or _is_loadable(tool):
            loadable.append(tool)
        else:
            yield f"{location}.tools[{index}] ({nameable(kind, 'a tool')})"
    item["tools"] = loadable


def _flattened(tool: Any) -> list[Any]:
    """Return the tools for which an entry of the field `tools` stands. For a namespace, a named group of tools, these
    are copies of its tools with the name of the namespace; for anything else, the entry itself.
    """
    if not isinstance(tool, dict) or tool.get("type") != "namespace" or not isinstance(tool.get("tools"), list):
        return [tool]
    space = {"namespace": tool.get("name")}
    if isinstance(tool.get("description"), str):
        space["namespace_description"] = tool["description"]
    return [{**function, **space} if isinstance(function, dict) else function for function in tool["tools"]]


# Removed from bodies of the Responses API: fields that cannot affect answers of this server's models, or that only save
# time or tokens. The models have no verbosity setting, and reasoning is returned unsummarized.
LEFT_OUT = RemovalRules(
    fields=(
        "client_metadata",
        "context_management",
        "stream_options.reasoning_summary_delivery",
        *(f"tools[].{inner}{field}" for inner in ("", "tools[].") for field in ("async", "output_schema")),
    ),
    values={
        "text.verbosity": ("low", "high"),
        "reasoning.summary": ("concise", "detailed"),
        "reasoning.generate_summary": ("concise", "detailed"),
    },
    rules=(partial(_leave_out_of_items, field="input"), _leave_out_tools),
    forms={"input[]": InputItem},
)
# Removed from bodies of the Conversations API.
LEFT_OUT_OF_ITEMS = RemovalRules(rules=(partial(_leave_out_of_items, field="items"),), forms={"items[]": InputItem})
