"""What the Responses API and chat completions take, unless they are strict, although it has no effect here."""

from collections.abc import Collection, Mapping
from typing import Any

from genai_server.openai_api.raw_body import objects_at, remove, replace_media
from genai_server.openai_api.schemas.base import JsonObject

# Fields that cannot change an answer of this server's models, or whose only effect is a saving.
WITHOUT_EFFECT = (
    "client_metadata",
    "context_management",
    "stream_options.reasoning_summary_delivery",
    "tools[].defer_loading",
    "tools[].tools[].defer_loading",
)
# The same of fields with some of their values: these models have one style, and reasoning is given as it is.
VALUES = {
    "text.verbosity": ("low", "high"),
    "reasoning.summary": ("concise", "detailed"),
    "reasoning.generate_summary": ("concise", "detailed"),
}
# Those of chat completions.
CHAT_VALUES = {"verbosity": ("low", "high")}
# vLLM's: which library holds an answer to its grammar, and the white space of JSON, which is the same here always.
COMPLETIONS_WITHOUT_EFFECT = (
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "structured_outputs.whitespace_pattern",
)
# Tools that OpenAI's servers run, or whose results are images.
SERVER_TOOLS = (
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "mcp",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
MEDIA = {"input_file": "file", "input_image": "image"}
CHAT_MEDIA = {"file": "file", "image_url": "image"}
_PLACES_OF_MEDIA = ("input[].content[]", "input[].output[]")
_PLACES_IN_ITEMS = ("items[].content[]", "items[].output[]")


def leave_out(body: Any) -> list[str]:
    """Take all this out of a body of the Responses API, and put the functions of namespaces among its tools; returns
    the places.
    """
    found = [place for path in WITHOUT_EFFECT for place in remove(body, path)] + _values(body, VALUES)
    for path in _PLACES_OF_MEDIA:
        found += replace_media(body, path, MEDIA, "input_text")
    return found + _tools(body)


def leave_out_of_items(body: Any) -> list[str]:
    """The same for a body of the Conversations API."""
    return [place for path in _PLACES_IN_ITEMS for place in replace_media(body, path, MEDIA, "input_text")]


def leave_out_of_chat(body: Any) -> list[str]:
    """The same for a body of chat completions."""
    found = leave_out_of_completion(body) + _values(body, CHAT_VALUES)
    return found + list(replace_media(body, "messages[].content[]", CHAT_MEDIA, "text"))


def leave_out_of_completion(body: Any) -> list[str]:
    """The same for a body of text completions."""
    return [place for path in COMPLETIONS_WITHOUT_EFFECT for place in remove(body, path)]


def _values(body: Any, table: Mapping[str, Collection[str]]) -> list[str]:
    found: list[str] = []
    for path, values in table.items():
        parent, _, field = path.rpartition(".")
        if any(value.get(field) in values for _, value in objects_at(body, parent)):
            found += remove(body, path)
    return found


def _tools(body: Any) -> list[str]:
    tools = dict(objects_at(body, "tools[]"))
    dropped = {place: tool for place, tool in tools.items() if tool.get("type") in SERVER_TOOLS}
    if dropped or any(tool.get("type") == "namespace" for tool in tools.values()):
        gone = [id(tool) for tool in dropped.values()]
        body["tools"] = [one for tool in body["tools"] if id(tool) not in gone for one in _flattened(tool)]
    return [f"{place} ({tool['type']})" for place, tool in dropped.items()]


def _flattened(tool: Any) -> list[Any]:
    """The functions of a namespace, each with the namespace's name; another tool as it is."""
    if not isinstance(tool, dict) or tool.get("type") != "namespace" or not isinstance(tool.get("tools"), list):
        return [tool]
    return [_within(tool, function) for function in tool["tools"]]


def _within(namespace: JsonObject, function: Any) -> JsonObject | Any:
    """A function of a namespace, with the namespace's name and description."""
    if not isinstance(function, dict):
        return function
    found = {**function, "namespace": namespace.get("name")}
    about = namespace.get("description")
    return {**found, "namespace_description": about} if isinstance(about, str) else found
