"""Tool calls as JSON objects, `{"name": …, "arguments": {…}}`: functions to read, write and constrain them, and the
formats of Hermes and Qwen (`Hermes`), Granite, Phi and Nemotron (`JsonList`) and Mistral's models (`Mistral`).

Llama writes "parameters" for "arguments". Both keys are accepted, before or after the name, and so are "type" and "id",
which are ignored. Arguments after the name are emitted as they arrive. Missing arguments and null are emitted as {}.
Some models write the arguments as a string that contains the object; it is emitted when it is complete.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genai_server.text.answers.parsing import Lookahead, Reader, is_json, read_colon, read_string, read_value
from genai_server.text.grammars.lark import ANYTHING, SPACES, any_of, fits, marker, quoted, separated, spelled
from genai_server.text.tool_formats.tool_format import (
    Call,
    Calls,
    Tool,
    ToolFormat,
    random_id,
    read_closing,
    read_list,
    write_json,
)

_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("type", "id")
# Possible first keys of a call.
CALL_KEYS = ("name", *_ARGUMENTS, *_IGNORED)


def read_call_list(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read tool calls in a JSON array, at least one, or one call without an array, and emit them to `calls`.

    Result of this generator, which yields while it needs more text: whether the text had this form.
    """
    if (yield from text.skip_space()) != "[":
        return (yield from read_call_object(text, calls))
    return (yield from read_list(text, calls, read_call_object))


def read_call_object(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read one tool call, a JSON object with the function's name and arguments, and emit it to `calls`.

    Result of this generator, which yields while it needs more text: whether the text was such a call.
    """
    yield from text.skip_space()
    if not (yield from text.take("{")):
        return False
    call = _Call(text, calls)
    while True:
        key = yield from _read_text(text)
        if key is None or not (yield from read_colon(text)):
            return False
        if not (yield from call.read_member(key)):
            return False
        if (yield from text.skip_space()) == "}":
            text.at += 1
            return call.finish()
        if not (yield from text.take(",")):
            return False


class _Call:
    """Reads the members of one JSON object that is a tool call, in any order, and emits the call. `read_call_object`
    creates it.
    """

    def __init__(self, text: Lookahead, calls: Calls) -> None:
        self._text = text
        self._calls = calls
        self._named = False
        # Arguments before the name are held until it is known. Later ones are emitted as they arrive.
        self._waiting: str | None = None
        self._is_emitted = False

    def read_member(self, key: str) -> Reader[bool]:
        """Read the value of the object's member `key`. If it is the arguments, and the name is known, emit them.

        Result of this generator, which yields while it needs more text: whether the object can still be a call.
        """
        if key == "name" and not self._named:
            name = yield from _read_text(self._text)
            if name not in self._calls.names:
                return False
            self._named = True
            self._calls.start(str(name))
            return True
        if key in _ARGUMENTS and self._waiting is None and not self._is_emitted:
            return (yield from self._read_arguments())
        return key in _IGNORED and (yield from read_value(self._text))

    def finish(self) -> bool:
        """Complete the call at the end of the object, and emit the arguments that have been held back, {} if there are
        none.

        Returns whether the object was a call, which requires a name.
        """
        if not self._named:
            return False
        if not self._is_emitted:
            self._calls.arguments((self._waiting or "{}")[:-1], self._text.at)
        self._calls.end(self._text.at)
        return True

    def _read_arguments(self) -> Reader[bool]:
        text, start = self._text, self._text.at
        char = yield from text.skip_space()
        if char == "{" and self._named:
            self._is_emitted = True
            return (yield from _emit_value(text, self._calls))
        start = text.at
        if char not in ("{", '"', "n") or not (yield from read_value(text)):
            return False
        self._waiting = _object_text(text.since(start))
        return self._waiting is not None


def read_arguments(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read the arguments of the call that has been started in `calls`, a JSON object, emit them and end the call.

    Result of this generator, which yields while it needs more text: whether the text was a JSON object.
    """
    if (yield from text.skip_space()) != "{" or not (yield from _emit_value(text, calls)):
        return False
    calls.end(text.at)
    return True


def _emit_value(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read a JSON object and emit its text as arguments as it arrives, without the last brace, which the end of the
    call adds.

    Result of this generator, which yields while it needs more text: whether the object is valid JSON.
    """
    start, reader = text.at, read_value(text)
    while True:
        try:
            next(reader)
        except StopIteration as end:
            read_to = text.at - bool(end.value)
            calls.arguments(text.between(start, read_to), read_to)
            return bool(end.value)
        calls.arguments(text.since(start), text.at)
        text.forget()
        start = text.at
        yield


def _read_text(text: Lookahead) -> Reader[str | None]:
    """Read a JSON string after optional whitespace.

    Result of this generator, which yields while it needs more text: the string's content; None if there is no valid
    string.
    """
    yield from text.skip_space()
    start = text.at
    if not (yield from read_string(text)):
        return None
    decoded: str = json.loads(text.since(start))
    return decoded


def _object_text(value: str) -> str | None:
    """Return the arguments of a call as the text of a JSON object; None if they are a string that contains no object.

    `value` is the valid JSON that the model has written: an object, null (no arguments), or a string with an object in
    it.
    """
    if value == "null":
        return "{}"
    if value.startswith("{"):
        return value
    content: str = json.loads(value)
    return content.rstrip() if content.startswith("{") and is_json(content) else None


def write_call_object(call: Call, *, key: str = "arguments") -> str:
    """Return one tool call as JSON, as models write it. `key` is the name of the member with the arguments."""
    return write_json({"name": call.name, key: call.arguments})


def lark_object(tools: Sequence[Tool], *, key: str = "arguments") -> str:
    """Return the Lark rule `called` of a grammar, which matches one tool call as a JSON object.

    The call is to one of `tools`, and its arguments match the tool's parameters. `key` is the name of the member with
    the arguments. Raises InvalidField for parameters that cannot be enforced.
    """
    heads = [quoted(f'{{"name": {json.dumps(tool.name)}, "{key}": ') for tool in tools]
    calls = [f"{head} {fits(tool.schema)} {quoted('}')}" for head, tool in zip(heads, tools, strict=True)]
    return f"called: {any_of(calls)}"


_CALL_ID, _ARGS = "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[^\s\[{]*")
_ID = re.compile(r"[0-9A-Za-z]*")
# The chat templates of Mistral's models up to version 11 refuse ids of any other length.
_ID_LENGTH = 9


class Hermes(ToolFormat):
    """The tool call format of Hermes, Qwen 2.5 and Qwen 3: one JSON object in `<tool_call>` tags per call, each part on
    a line of its own.

        <tool_call>
        {"name": "get_weather", "arguments": {"city": "Oslo"}}
        </tool_call>

    Sources: chat templates of Hermes-2-Pro, Qwen2.5-Instruct and Qwen3.
    """

    name = "hermes"
    opening = "<tool_call>"
    closing = "</tool_call>"
    shown_tokens = (opening, closing)

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(self.opening)) or not (yield from read_call_object(text, calls)):
            return False
        yield from read_closing(text, self.closing)
        return True

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        calls, newline = separated(f"call{suffix}", "\n", several=parallel), quoted("\n")
        closing = marker(self.closing, opaque_tokens)
        return f"calls{suffix}: {calls}\ncall{suffix}: opening{suffix} {newline} called {newline} {closing}"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        return lark_object(tools)

    def write_calls(self, calls: Sequence[Call]) -> str:
        return "\n".join(f"{self.opening}\n{write_call_object(call)}\n{self.closing}" for call in calls)


@dataclass(frozen=True)
class JsonList(ToolFormat):
    """A tool call format with a JSON array of calls between two markers, such as those of Granite 3, Phi-4-mini and
    Nemotron.

    `opening` and `closing` are the markers; without a closing marker, `closing` is "". `other_opening` is a marker that
    the models write now and then instead, and `other_beginning` the expression that recognizes it; both are "" if there
    is none. `result_role` is the role of results in prompts. One object instead of the array is also accepted.
    """

    name: str
    opening: str
    # After the array; "" without a marker.
    closing: str
    # Another beginning that models write now and then, and the expression that recognizes it; "" for none.
    other_opening: str = ""
    other_beginning: str = ""
    result_role: str = "tool_response"

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.opening, self.closing, self.other_opening)))

    @property
    def beginnings(self) -> str:
        return self.opening[:1] + self.other_opening[:1]

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take_any(*filter(None, (self.opening, self.other_opening)))):
            return False
        if not (yield from read_call_list(text, calls)):
            return False
        if self.closing:
            yield from read_closing(text, self.closing)
        return True

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        objects, closing = separated("called", ", ", several=parallel), spelled(self.closing, opaque_tokens)
        return f"calls{suffix}: opening{suffix} {quoted('[')} {objects} {quoted(']')} {closing}"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        return lark_object(tools)

    def lark_beginning(self, names: Sequence[str], *, before: str = ANYTHING) -> str:
        return f"{before}({'|'.join(filter(None, (re.escape(self.opening), self.other_beginning)))})"

    def write_calls(self, calls: Sequence[Call]) -> str:
        return f"{self.opening}[{', '.join(map(write_call_object, calls))}]{self.closing}"


# Granite 3, whose result of a call has the role `tool_response`. Granite 3.1 now and then writes the marker without its
# bars. Granite 4 writes as Hermes does. (Model cards and chat templates of Granite 3.0 to 3.3 and 4.0.)
#
#     <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]
GRANITE = JsonList("granite", "<|tool_call|>", closing="", other_opening="<tool_call>", other_beginning="<tool_call>")

# Phi-4-mini. With other prompts it writes `functools[…]` without an end, or one object instead of the array. The result
# of a call has a role, and so a token, of its own, `<|tool_response|>`; `<|tool|>` stands before the tools. (Tokenizer
# and model card of Phi-4-mini-instruct; chat templates for it of vLLM and llama.cpp.)
#
#     <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>
PHI4MINI = JsonList(
    "phi4mini",
    "<|tool_call|>",
    closing="<|/tool_call|>",
    other_opening="functools",
    other_beginning=rf"functools{SPACES}[\[{{]",
)

# Nemotron Nano 2 and the Nemotrons made of Llama. Nemotron 3 writes as Qwen3-Coder does. (Chat templates of
# NVIDIA-Nemotron-Nano-9B-v2 and Llama-3_3-Nemotron-Super-49B-v1_5.)
#
#     <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]</TOOLCALL>
NEMOTRON = JsonList("nemotron", "<TOOLCALL>", closing="</TOOLCALL>", result_role="tool")


class Mistral(ToolFormat):
    """The tool call format of Mistral's models: calls stand after the token `[TOOL_CALLS]`.

    Up to tokenizer version 10, the calls are a JSON array of objects. From version 11 on, they are one name and its
    arguments; each further call has its own token. Version 11 may have `[CALL_ID]` and an id before `[ARGS]`.

        [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]

        [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}

    Sources: mistral-common's chat templates, versions 3 to 15.
    """

    name = "mistral"
    opening = "[TOOL_CALLS]"
    shown_tokens = (opening, _CALL_ID, _ARGS)

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(self.opening)):
            return False
        char = yield from text.skip_space()
        if char and char in "[{":
            return (yield from read_call_list(text, calls))
        name = yield from text.take_all(_NAME)
        if name not in calls.names or not (yield from text.skip_space()):
            return False
        calls.start(name)
        if (yield from text.take(_CALL_ID)):
            yield from text.take_all(_ID)
        yield from text.take_last(_ARGS)
        return (yield from read_arguments(text, calls))

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        if _ARGS in opaque_tokens:
            quantifier = "+" if parallel else ""
            return f"calls{suffix}: call{suffix}{quantifier}\ncall{suffix}: opening{suffix} called"
        objects = separated("called", ", ", several=parallel)
        return f"calls{suffix}: opening{suffix} {quoted(' ')}? {quoted('[')} {objects} {quoted(']')}"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        if _ARGS not in opaque_tokens:
            return lark_object(tools)
        call_id = f"({marker(_CALL_ID, opaque_tokens)} /[0-9A-Za-z]{{{_ID_LENGTH}}}/)?"
        between = f"{call_id if _CALL_ID in opaque_tokens else ''} {marker(_ARGS, opaque_tokens)}"
        return f"called: {any_of(f'{quoted(tool.name)} {between} {fits(tool.schema)}' for tool in tools)}"

    def write_calls(self, calls: Sequence[Call]) -> str:
        return f"{self.opening}[{', '.join(map(write_call_object, calls))}]"

    def new_id(self) -> str:
        return random_id(prefix="", length=_ID_LENGTH)
