"""`functions`, which chat completions had before `tools`: the words for errors about the tools that they become."""

from genai_server.errors import RequestError


def outer_name(text: str) -> str:
    """A text with the names of these fields for those of tools."""
    return text.replace("tool_choice", "function_call").replace("tools", "functions")


def outer_error(error: RequestError) -> RequestError:
    """An error about tools as one about functions."""
    return error.reworded(outer_name(error.message), param=error.param and outer_name(error.param))
