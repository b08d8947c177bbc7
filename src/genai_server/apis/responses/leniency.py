"""What the lenient Responses and Conversations APIs accept and remove although this server does not support it."""

from typing import Any

from genai_server.http.leniency import objects_at, remove, remove_tools, remove_values, replace_media

# Fields that cannot affect answers of this server's models, or only save time or tokens.
WITHOUT_EFFECT = (
    "client_metadata",
    "context_management",
    "stream_options.reasoning_summary_delivery",
    "tools[].defer_loading",
    "tools[].tools[].defer_loading",
)
# Values without effect: these models have one style, and reasoning is returned unsummarized.
VALUES = {
    "text.verbosity": ("low", "high"),
    "reasoning.summary": ("concise", "detailed"),
    "reasoning.generate_summary": ("concise", "detailed"),
}
# Tools that OpenAI's servers run, or that return images.
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
MEDIA = {"input_file": "file"}
_PLACES_OF_MEDIA = ("input[].content[]", "input[].output[]")
_PLACES_IN_ITEMS = ("items[].content[]", "items[].output[]")


def leave_out(body: Any) -> list[str]:
    """Remove unsupported parts from a Responses API body and flatten tool namespaces; returns the locations removed."""
    found = remove(body, *WITHOUT_EFFECT) + remove_values(body, VALUES)
    found += replace_media(body, MEDIA, "input_text", *_PLACES_OF_MEDIA)
    found += remove_tools(body, SERVER_TOOLS.__contains__)
    if any(tool.get("type") == "namespace" for _, tool in objects_at(body, "tools[]")):
        body["tools"] = [one for tool in body["tools"] for one in _flattened(tool)]
    return found


def leave_out_of_items(body: Any) -> list[str]:
    """Like `leave_out`, for a body of the Conversations API."""
    return replace_media(body, MEDIA, "input_text", *_PLACES_IN_ITEMS)


def _flattened(tool: Any) -> list[Any]:
    """The functions of a namespace, each with the namespace's name; any other tool unchanged."""
    if not isinstance(tool, dict) or tool.get("type") != "namespace" or not isinstance(tool.get("tools"), list):
        return [tool]
    space = {"namespace": tool.get("name")}
    if isinstance(tool.get("description"), str):
        space["namespace_description"] = tool["description"]
    return [{**function, **space} if isinstance(function, dict) else function for function in tool["tools"]]
