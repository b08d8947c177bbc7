"""Anthropic's tools that clients run and that a request names only by type: shell, text editor and memory.

Anthropic has published the parameters of these tools, and its models know them. Other models get them as functions with
a description and a schema. Each dated type has its own parameters, which never change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from genai_server.http.json_response import JsonObject


@dataclass(frozen=True)
class ClientTool:
    """The description and the parameters with which a model sees a tool."""

    description: str
    parameters: JsonObject


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _parameters(properties: Mapping[str, Any], *required: str) -> JsonObject:
    return {"type": "object", "properties": dict(properties), "required": [*required]}


def _commands(*names: str) -> JsonObject:
    return {"type": "string", "enum": [*names], "description": "What to do."}


_BASH = ClientTool(
    "Runs a command in a bash session that keeps its state between calls: working directory, variables, functions. "
    "The result has the command's output and errors.",
    _parameters(
        {
            "command": _text("The command to run. Required unless restart is true."),
            "restart": {"type": "boolean", "description": "true: end the session and start a new one."},
        }
    ),
)
_LINE_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "With view of a file: the first and the last line to show, counted from 1. A last line of -1 is the "
    "end of the file.",
}
_INSERT_LINE = {
    "type": "integer",
    "minimum": 0,
    "description": "Required with insert: the number of the line after which the text is inserted; 0 is the beginning.",
}
_FILE_TEXT = _text("Required with create: the complete text of the new file.")
_OLD_TEXT = _text(
    "Required with str_replace: the text to replace. It must be in the file exactly once, with the same whitespace."
)


def _editor(description: str, *commands: str, inserted: str) -> ClientTool:
    """The definition of a text editor as a tool with the commands view, create, str_replace, insert and `commands`.
    `inserted` is the name of the parameter with the text for the command insert.
    """
    new_text = "With str_replace: the text to put in its place; without it, the old text is removed."
    texts = {"new_str": _text(new_text)}
    if inserted == "new_str":
        texts["new_str"] = _text(f"{new_text} Required with insert: the text to insert.")
    else:
        texts[inserted] = _text("Required with insert: the text to insert.")
    return ClientTool(
        description,
        _parameters(
            {
                "command": _commands("view", "create", "str_replace", "insert", *commands),
                "path": _text("The absolute path of a file or, with view, a directory."),
                "file_text": _FILE_TEXT,
                "old_str": _OLD_TEXT,
                **texts,
                "insert_line": _INSERT_LINE,
                "view_range": _LINE_RANGE,
            },
            "command",
            "path",
        ),
    )


_EDITS = (
    "Shows and edits text files. view shows a file with line numbers, or what a directory contains; create writes a "
    "new file; str_replace replaces one text of a file; insert adds text after a line"
)
_EDITOR_WITH_UNDO = _editor(f"{_EDITS}; undo_edit takes back the last edit of a file.", "undo_edit", inserted="new_str")
_EDITOR = _editor(f"{_EDITS}.", inserted="insert_text")
_MEMORY = ClientTool(
    "Files in the directory /memories, which stay when the conversation ends. Look there for what is known before you "
    "begin, and write down what is worth knowing later. view shows a file or what a directory contains; create writes "
    "a file; str_replace replaces one text of a file; insert adds text after a line; delete removes a file or "
    "directory; rename moves one.",
    _parameters(
        {
            "command": _commands("view", "create", "str_replace", "insert", "delete", "rename"),
            "path": _text("Required except with rename: the path of a file or directory, such as /memories/notes.md."),
            "file_text": _FILE_TEXT,
            "old_str": _OLD_TEXT,
            "new_str": _text("Required with str_replace: the text to put in its place."),
            "insert_line": _INSERT_LINE,
            "insert_text": _text("Required with insert: the text to insert."),
            "view_range": _LINE_RANGE,
            "old_path": _text("Required with rename: the present path."),
            "new_path": _text("Required with rename: the new path."),
        },
        "command",
    ),
)
CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _EDITOR_WITH_UNDO,
    "text_editor_20250124": _EDITOR_WITH_UNDO,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}
