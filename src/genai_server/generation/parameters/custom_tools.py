"""Custom tools, which a model calls with a text. For the model, they are functions whose only argument is the text."""

import json
import re
from typing import Literal

from genai_server.http.json_response import JsonObject

_INPUT = "input"
# Schema keyword for a text that matches a Lark grammar, handled by text/grammars/lark_in_json.py.
_LARK = "x-lark"
_BEGINNING = re.compile(rf'\s*\{{\s*"{_INPUT}"\s*:\s*"')
_CHARACTERS = re.compile(
    r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


def function_of(
    name: str, description: str | None, syntax: Literal["lark", "regex"] | None, definition: str | None
) -> JsonObject:
    """The function that represents a custom tool. If `syntax` is given, the text for the tool must match `definition`,
    a Lark grammar or a regular expression.
    """
    text: JsonObject = {"type": "string"}
    if syntax == "regex":
        text["pattern"] = f"^(?:{definition})$"
    elif syntax == "lark":
        # Functions have no field for a grammar, so it is placed in the schema.
        text[_LARK] = definition
    return {
        "name": name,
        **({} if description is None else {"description": description}),
        "parameters": {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT]},
        "strict": True,
    }


def arguments_of(text: str) -> str:
    """The JSON arguments of a call with this text."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def text_of(arguments: str) -> str:
    """The text in a call's arguments, which may be cut off. Arguments in another format are themselves the text."""
    text = CustomText()
    text.feed(arguments)
    text.finish()
    return text.text


class CustomText:
    """The text for a custom tool in a call whose arguments arrive in pieces."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        # The arguments whose text has not been returned, because more may have to come for it.
        self._pending = ""
        # Whether the text itself has begun.
        self._has_begun = False

    @property
    def text(self) -> str:
        """The text that has been returned up to now."""
        return "".join(self._texts)

    def feed(self, arguments: str) -> str:
        """Add a piece of the arguments. Returns the next piece of the text."""
        self._pending += arguments
        if not self._has_begun:
            begun = _BEGINNING.match(self._pending)
            if begun is None:
                return ""
            self._has_begun = True
            self._pending = self._pending[begun.end() :]
        found = _CHARACTERS.match(self._pending)
        assert found is not None
        self._pending = self._pending[found.end() :]
        return self._returned(json.loads(f'"{found[0]}"'))

    def finish(self) -> str:
        """The rest of the text, when no more arguments come: all arguments if they are in another format."""
        return "" if self._has_begun else self._returned(self._pending)

    def _returned(self, text: str) -> str:
        self._texts.append(text)
        return text
