"""Converts the messages of a conversation to forms that a model's chat template can write (`convert`).

A history comes from any client, and its answers from any model. Published templates refuse or drop much of what such
histories contain: a system message that is not the first message, two user messages in a row, two tool calls at once.
`convert` uses what is known about a template (template_traits.py): what the template writes stays unchanged, other
messages are moved or rewritten to forms that it writes, and what cannot be written at all is reported. The content of a
message is a string, None, or a list of parts, which are texts, images or audio clips.

The conversion of a message depends only on the messages before it and on the results of its own calls, never on later
messages. So the prompt of a conversation begins with the prompt of its first turns, and cached prefixes can be used.
The one exception is templates that write instructions into the last user message.
"""

import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from genai_server.errors import InvalidField
from genai_server.text.prompts.template_traits import CallForm, CallIds, TemplateTraits, TextBesideCalls

Message = Mapping[str, Any]
Content = str | list[Any] | None
# Parts without text, with what templates for lists of parts call them.
MEDIA: Mapping[str, Collection[str]] = {"image": {"image", "image_url"}, "audio": {"audio", "input_audio"}}
# Between two contents that become one.
_BETWEEN = "\n\n"


def is_medium(part: Any) -> bool:
    """Whether a part of a message's content is an image or an audio clip."""
    return isinstance(part, Mapping) and part.keys() == {"type"} and part["type"] in MEDIA


def has_media(content: Content) -> bool:
    """Whether a message content contains images or audio clips."""
    return isinstance(content, list) and any(map(is_medium, content))


def num_media(messages: Iterable[Message]) -> int:
    """Return the number of images and audio clips in all messages."""
    contents = (message.get("content") for message in messages)
    return sum(is_medium(part) for parts in contents if isinstance(parts, list) for part in parts)


def plain_content(content: Any, path: str) -> Content:
    """Return the content of a message as one text, with its text parts joined by line breaks.

    Content with an image or audio clip stays a list of parts, and a content that is no list is unchanged. `path` is the
    path of the content in the request. Raises InvalidField, naming the part, for a part of an unknown type.
    """
    if not isinstance(content, list):
        return content  # type: ignore[no-any-return]
    texts = [_text_of(part, f"{path}[{n}]") for n, part in enumerate(content) if not is_medium(part)]
    return "\n".join(texts) if len(texts) == len(content) else content


def joined(*contents: Content) -> Content:
    """Return the contents of several messages as one content, with an empty line between their texts. Empty contents
    are skipped.
    """
    non_empty = [content for content in contents if content]
    if not non_empty:
        return ""
    if all(isinstance(content, str) for content in non_empty):
        return _BETWEEN.join(str(content) for content in non_empty)
    parts: list[Any] = []
    for content in non_empty:
        for number, part in enumerate(_parts(content)):
            if number == 0 and parts and not is_medium(part) and not is_medium(parts[-1]):
                parts[-1] = {**part, "text": f"{parts[-1]['text']}{_BETWEEN}{part['text']}"}
            else:
                parts.append(part)
    return parts


def labelled(label: str, content: Content) -> Content:
    """Return a message content after a line `[label]`, which tells the model what the content is."""
    if isinstance(content, list):
        return [{"type": "text", "text": f"[{label}]\n"}, *content]
    return f"[{label}]\n{content}" if content else f"[{label}]"


def text_of(content: Content) -> str:
    """Return the text of a message content, without its images and audio clips."""
    return "\n".join(part["text"] for part in _parts(content) if not is_medium(part))


def media_of(content: Content) -> list[Any]:
    """Return the images and audio clips in a message content, in order."""
    return [part for part in content if is_medium(part)] if isinstance(content, list) else []


def _parts(content: Content) -> Sequence[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _text_of(part: Any, path: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise InvalidField(path, "must be a part of type text; this model supports no other type")
    return text


REASONING = "reasoning_content"
_INSTRUCTIONS = ("system", "developer")
# Added messages and contents, where a template needs one.
_BEGINNING = "[The assistant begins.]"
_CONTINUED = "[The user continues.]"
_NO_RESULT = "[no result]"
_NINE_CHARACTERS = re.compile(r"[A-Za-z0-9]{9}")
_NAMED = re.compile(r"functions\.(.+):\d+")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Notes:
    """Notes on which parts of a conversation are rewritten in the prompt, and which are left out. Clients and operators
    are told.
    """

    def __init__(self) -> None:
        self._converted: dict[str, list[str]] = {}
        self._left_out: dict[str, list[str]] = {}

    def convert(self, path: str, form: str) -> None:
        """Note that the part at `path`, such as `messages[2].content`, is written in another form, which the words
        `form` describe.
        """
        self._converted.setdefault(form, []).append(path)

    def leave_out(self, path: str, reason: str) -> None:
        """Note that the part at `path`, such as `messages[2].name`, is not in the prompt, for the reason `reason`."""
        self._left_out.setdefault(reason, []).append(path)

    @property
    def converted(self) -> tuple[tuple[str, str], ...]:
        """The rewritten parts of the conversation, one entry per form.

        An entry is the path of the first part, and a text with the number of other parts and the form.
        """
        return _entries(self._converted)

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """The omitted parts of the conversation, one entry per reason.

        An entry is the path of the first part, and a text with the number of other parts and the reason.
        """
        return _entries(self._left_out)


class Conversation(NamedTuple):
    """A conversation in the forms that a chat template writes: the result of `convert`.

    `sources` has, for each converted message, the index of the original message that it comes from. `notes` says what
    has been changed and left out.
    """

    messages: list[dict[str, Any]]
    sources: list[int]
    notes: Notes

    def media_order(self, originals: Sequence[Message]) -> list[int]:
        """Return, for each image or audio clip in the converted messages, its index among the images and clips of the
        original messages `originals`.

        The order may differ because tool results can be moved.
        """
        indexes = {id(part): number for number, part in enumerate(_media(originals))}
        return [indexes[id(part)] for part in _media(self.messages)]


class _Turn(NamedTuple):
    """A message of the conversation during its conversion, with its index `number` in the original conversation.

    `is_labelled` says that its text already tells the model whose text it is.
    """

    number: int
    message: dict[str, Any]
    # Whether its text says whose it is.
    is_labelled: bool = False

    @property
    def role(self) -> Any:
        return self.message.get("role")

    @property
    def content(self) -> Content:
        return self.message["content"]  # type: ignore[no-any-return]

    @property
    def calls(self) -> list[Any]:
        return self.message.get("tool_calls", [])  # type: ignore[no-any-return]

    def with_fields(self, **fields: Any) -> "_Turn":
        return self._replace(message={**self.message, **fields})

    def without(self, field: str) -> "_Turn":
        return self._replace(message={name: value for name, value in self.message.items() if name != field})


def convert(messages: Sequence[Message], traits: TemplateTraits, *, continues: bool = False) -> Conversation:
    """Convert the messages of a conversation to forms that a chat template with the given traits writes.

    `continues` says that the answer continues the last message. Fields that are null or an empty list are omitted.
    Content parts are joined by line breaks, unless one of them is an image or an audio clip. The given messages are not
    changed. Raises InvalidField, naming the field, for parts of unknown types.
    """
    turns = [_Turn(number, _with_plain_fields(message, number)) for number, message in enumerate(messages)]
    return _Conversion(traits, continued=len(turns) - 1 if continues else None).run(turns)


def _with_plain_fields(message: Message, number: int) -> dict[str, Any]:
    # Some templates check whether a message has a field, not its value.
    plain = {name: value for name, value in message.items() if value is not None and value != []}
    plain["content"] = plain_content(plain.get("content"), f"messages[{number}].content")
    return plain


class _Conversion:
    """Converts one conversation to messages that a chat template with the given traits writes, and notes what it
    changes.

    `convert` creates it. `continued` is the index of the message that the answer continues; None if there is none.
    """

    def __init__(self, traits: TemplateTraits, continued: int | None) -> None:
        self._traits = traits
        # The number of the message that the answer continues, if any.
        self._continued = continued
        self._notes = Notes()
        self._written: list[_Turn] = []
        # What belongs to the content of the last written message.
        self._more: list[Content] = []
        # Instructions that are to be written before the next text of the user.
        self._pending: _Turn | None = None
        self._num_calls = 0

    def run(self, turns: Sequence[_Turn]) -> Conversation:
        if not self._traits.names:
            self._note_names(turns)
        start = next((n for n, turn in enumerate(turns) if turn.role not in _INSTRUCTIONS), len(turns))
        remaining = [self._in_place(turn) for turn in turns[start:]]
        self._begin(turns[:start], is_all=not remaining)
        index = 0
        while index < len(remaining):
            turn = remaining[index]
            index += 1
            group = [turn]
            while index < len(remaining) and self._has_to_join(group[-1], remaining[index]):
                group.append(remaining[index])
                index += 1
            turn = self._joined(group)
            if turn.role == "assistant" and turn.calls:
                end = next(
                    (n for n in range(index, len(remaining)) if remaining[n].role == "assistant"), len(remaining)
                )
                self._exchange(turn, remaining[index:end], is_last=end == len(remaining))
                index = end
            else:
                self._write(turn)
        if self._pending is not None:
            self._user(_Turn(self._pending.number, {"role": "user", "content": ""}))
        self._complete_last()
        self._put_before_last_user()
        return Conversation(
            [turn.message for turn in self._written], [turn.number for turn in self._written], self._notes
        )

    # Instructions.

    def _begin(self, instructions: Sequence[_Turn], *, is_all: bool) -> None:
        """Write the instructions (system and developer messages) at the beginning of the conversation, joined to one
        message.

        If the template does not write them there, they are kept for the next message of the user. `is_all` says that
        the conversation has no other messages.
        """
        if not instructions:
            return
        traits = self._traits
        groups = [list(instructions)]
        if traits.separate_developer:
            groups = [list(group) for _, group in groupby(instructions, key=lambda turn: turn.role)]
        for group in groups:
            is_developer = traits.leading_developer and all(turn.role == "developer" for turn in group)
            turn = group[-1].with_fields(
                role="developer" if is_developer else "system", content=joined(*(turn.content for turn in group))
            )
            if not traits.leading_instructions or (is_all and not traits.instructions_alone):
                before = "" if self._pending is None else self._pending.content
                self._pending = turn.with_fields(content=joined(before, turn.content))
            else:
                self._written.append(turn)

    def _put_before_last_user(self) -> None:
        """Move the instructions at the beginning into the last user message, if the template would otherwise lose them.

        Some templates write instructions only next to the last user message, and lose them if another message is the
        last.
        """
        written = self._written
        if (
            self._traits.instructions_before_results
            or not written
            or written[0].role not in _INSTRUCTIONS
            or written[-1].role == "user"
        ):
            return
        last = next((n for n in range(len(written) - 1, -1, -1) if written[n].role == "user"), None)
        if last is not None:
            instructions = written[0]
            written[last] = written[last].with_fields(content=joined(instructions.content, written[last].content))
            self._convert(instructions, "as text of the last user message")
            del written[0]

    def _in_place(self, turn: _Turn) -> _Turn:
        """Return the message `turn`, which does not stand at the beginning, in the form in which the template writes it
        there.

        Only system and developer messages change; where the template does not write them, they become messages of the
        user.
        """
        if turn.role not in _INSTRUCTIONS:
            return turn
        if self._traits.later_instructions:
            return turn.with_fields(role=turn.role if self._traits.leading_developer else "system")
        self._convert(turn, f"{turn.role} message as text of the user")
        content = labelled(f"{turn.role} message", turn.content)
        return _Turn(turn.number, {"role": "user", "content": content}, is_labelled=True)

    # Neighbours.

    def _has_to_join(self, turn: _Turn, following: _Turn) -> bool:
        """Whether two messages in a row are both from the assistant, and the template can write them only as one
        message.
        """
        if not turn.role == following.role == "assistant":
            return False
        if turn.calls:
            return bool(following.calls) and not self._traits.open_calls
        return not self._traits.assistant_after_assistant

    def _joined(self, group: Sequence[_Turn]) -> _Turn:
        """Return several messages of the assistant as one message, with their texts, reasoning and tool calls."""
        if len(group) == 1:
            return group[0]
        for turn in group[1:]:
            self._convert(turn, "joined with the message before it")
        fields: dict[str, Any] = {"content": joined(*(turn.content for turn in group))}
        if calls := [call for turn in group for call in turn.calls]:
            fields["tool_calls"] = calls
        if thoughts := [turn.message[REASONING] for turn in group if REASONING in turn.message]:
            fields[REASONING] = joined(*thoughts)
        return group[-1].with_fields(**fields)

    def _write(self, turn: _Turn) -> None:
        match turn.role:
            case "user":
                self._user(turn)
            case "assistant":
                self._assistant(turn)
            case "tool":
                self._orphan(turn)
            case _:
                self._append(turn)

    def _user(self, turn: _Turn) -> None:
        if (pending := self._pending) is not None:
            self._pending = None
            self._convert(pending, f"{pending.role} message as text of the user")
            turn = turn.with_fields(content=joined(pending.content, turn.content))
        last = self._written[-1] if self._written else None
        if last is None or last.role not in ("user", "tool"):
            self._append(turn)
        elif last.role == "user":
            if self._traits.user_after_user:
                self._append(turn)
            else:
                self._add_to_last(turn.content)
                self._convert(turn, "joined with the message before it")
        elif self._traits.user_after_tool:
            self._append(turn)
        elif has_media(turn.content):
            self._append(_Turn(turn.number, {"role": "assistant", "content": _CONTINUED}))
            self._append(turn)
            self._convert(turn, "after an added message of the assistant")
        else:
            self._add_to_last(turn.content if turn.is_labelled else labelled("user message", turn.content))
            self._convert(turn, "at the end of the tool result before it")

    def _assistant(self, turn: _Turn) -> None:
        """Write an assistant message without tool calls. A message without text is left out if the template cannot
        write it.
        """
        traits = self._traits
        if not turn.content and not traits.empty_assistant and turn.number != self._continued:
            self._convert(turn, "without text, therefore left out")
            if REASONING in turn.message:
                self._notes.leave_out(_field(turn, REASONING), "the message has no text")
            return
        self._begin_assistant(turn)
        # A text that is None belongs to calls only.
        self._append(self._with_reasoning(turn.with_fields(content=turn.content or "")))

    def _begin_assistant(self, turn: _Turn) -> None:
        """Write a user message before an assistant message, if the template needs one there.

        It has the instructions that have not been written yet, or a filler text.
        """
        if self._pending is not None:
            self._user(_Turn(self._pending.number, {"role": "user", "content": ""}))
        elif not self._traits.assistant_first and all(earlier.role in _INSTRUCTIONS for earlier in self._written):
            self._append(_Turn(turn.number, {"role": "user", "content": _BEGINNING}))
            self._convert(turn, "after an added message of the user")

    # Calls and results.

    def _exchange(self, turn: _Turn, following: Sequence[_Turn], *, is_last: bool) -> None:
        """Write an assistant message with tool calls, the results of the calls, and the messages that follow them.

        `following` are the messages between it and the next assistant message; `is_last` says that there is no next
        one.
        """
        traits = self._traits
        results, other_messages = self._results(turn, following)
        is_open = is_last and not following
        if not traits.open_calls and not is_open:
            self._add_missing(turn, results)
        if traits.calls is CallForm.TEXT:
            texts = [_call_as_text(call) for call in turn.calls]
            self._convert(turn, "as text", field="tool_calls")
            self._assistant(turn.without("tool_calls").with_fields(content=joined(turn.content, *texts)))
            self._write_results(zip(turn.calls, results, strict=True))
        else:
            self._begin_assistant(turn)
            self._calls(turn, results)
        for other in other_messages:
            self._write(other)

    def _results(self, turn: _Turn, following: Sequence[_Turn]) -> tuple[list[list[_Turn]], list[_Turn]]:
        """Return the result messages of each tool call of a message, and the other messages among `following`.

        `following` are the messages up to the next assistant message. Results are written before the other messages,
        because templates need this order.
        """
        ids = [_id(call) for call in turn.calls]
        remaining = Counter(ids)
        results_of: dict[Any, deque[_Turn]] = {id: deque() for id in remaining}
        other_messages: list[_Turn] = []
        for next_turn in following:
            if next_turn.role != "tool" or next_turn.message.get("tool_call_id") not in results_of:
                other_messages.append(next_turn)
                continue
            if other_messages:
                self._convert(next_turn, "before the messages that precede it")
            results_of[next_turn.message.get("tool_call_id")].append(next_turn)
        results = []
        for id in ids:
            remaining[id] -= 1
            # Calls with the same id have one result each, and the last of them those that are left.
            num_results = 1 if remaining[id] else len(results_of[id])
            results.append([results_of[id].popleft() for _ in range(min(num_results, len(results_of[id])))])
        return results, other_messages

    def _add_missing(self, turn: _Turn, results: list[list[_Turn]]) -> None:
        """Add a result message to each tool call without one, because the template cannot write such calls.

        `results` has the result messages of each call and is changed in place.
        """
        for index, (call, results_of_call) in enumerate(zip(turn.calls, results, strict=True)):
            if not results_of_call:
                message = {"role": "tool", "tool_call_id": _id(call), "content": _NO_RESULT}
                results_of_call.append(_Turn(turn.number, message))
                self._convert(turn, f"with the result {_NO_RESULT}", field=f"tool_calls[{index}]")

    def _calls(self, turn: _Turn, results: Sequence[list[_Turn]]) -> None:
        traits = self._traits
        text = turn.content
        originals = turn.calls
        if text and traits.text_beside_calls is not TextBesideCalls.WRITTEN:
            if traits.text_beside_calls is TextBesideCalls.BEFORE:
                self._convert(turn, "as a message of its own", field="content")
                self._append(_Turn(turn.number, {"role": "assistant", "content": text}))
            else:
                self._notes.leave_out(_field(turn, "content"), "the chat template writes none next to tool calls")
            text = None
        turn = turn.with_fields(content=text or traits.empty_content)
        if text and not traits.reasoning_beside_text and REASONING in turn.message:
            self._notes.leave_out(_field(turn, REASONING), "the chat template writes none next to text and calls")
            turn = turn.without(REASONING)
        calls = [self._converted_call(turn, index) for index in range(len(originals))]
        ids = {_id(old): _id(new) for old, new in zip(originals, calls, strict=True)}
        results_of_calls = [
            [one.with_fields(tool_call_id=ids.get(one.message.get("tool_call_id"))) for one in group]
            for group in results
        ]
        pairs = list(zip(calls, results_of_calls, strict=True))
        if traits.calls is CallForm.TOGETHER or len(calls) == 1:
            self._append(self._with_reasoning(turn.with_fields(tool_calls=calls)))
            self._write_results(pairs)
            return
        self._convert(turn, "one by one", field="tool_calls")
        for index, pair in enumerate(pairs):
            one = turn if index == 0 else _Turn(turn.number, {"role": "assistant", "content": traits.empty_content})
            self._append(self._with_reasoning(one.with_fields(tool_calls=[pair[0]])))
            self._write_results([pair])

    def _converted_call(self, turn: _Turn, index: int) -> Any:
        """Return the tool call with the index `index` of a message, with its id and arguments in the forms that the
        template needs.
        """
        call = turn.calls[index]
        function = call.get("function") if isinstance(call, Mapping) else None
        self._num_calls += 1
        if not isinstance(function, Mapping):
            return call
        arguments = self._arguments(turn, index, function.get("arguments"))
        converted = {**call, "function": {**function, "arguments": arguments}}
        if isinstance(id := call.get("id"), str):
            converted["id"] = self._fitting_id(id, str(function.get("name")))
        return converted

    def _arguments(self, turn: _Turn, index: int, arguments: Any) -> Any:
        value = _parsed(arguments) if isinstance(arguments, str) else {} if arguments is None else arguments
        if not isinstance(value, Mapping):
            field = f"tool_calls[{index}].function.arguments"
            if self._traits.broken_arguments:
                self._convert(turn, "no JSON object and therefore as text", field=field)
                return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            self._notes.leave_out(_field(turn, field), "no JSON object and therefore {}")
            arguments, value = "{}", {}
        if not self._traits.arguments_as_json:
            return value
        return arguments if isinstance(arguments, str) and arguments else json.dumps(value, ensure_ascii=False)

    def _fitting_id(self, id: str, name: str) -> str:
        """Return the id of a call to the tool `name` in the form that the template needs; `id` itself if it has this
        form.

        A new id is a hash of the given one or, where the template needs it, the tool's name with a count of the
        conversation's calls.
        """
        if self._traits.call_ids is CallIds.NAMED and not ((match := _NAMED.fullmatch(id)) and match[1] == name):
            return f"functions.{name}:{self._num_calls - 1}"
        return self._nine(id)

    def _nine(self, id: str) -> str:
        if self._traits.call_ids is not CallIds.NINE_CHARACTERS or _NINE_CHARACTERS.fullmatch(id):
            return id
        number = int.from_bytes(hashlib.blake2b(id.encode("utf-8", "replace"), digest_size=8).digest())
        return "".join(_DIGITS[number // len(_DIGITS) ** n % len(_DIGITS)] for n in range(9))

    def _write_results(self, pairs: Any) -> None:
        media: list[tuple[_Turn, list[Any]]] = []
        for call, results in pairs:
            name = (call.get("function") or {}).get("name") if isinstance(call, Mapping) else None
            for result in results:
                if not self._traits.tool_results:
                    self._result_as_text(result, name)
                    continue
                if name is not None:
                    result = result.with_fields(name=result.message.get("name", name))
                if has_media(result.content) and not self._traits.media_in_results:
                    media.append((result, media_of(result.content)))
                    result = result.with_fields(content=text_of(result.content))
                self._append(result)
        for result, parts in media:
            self._convert(result, "its images and audio as a message of the user")
            self._user(_Turn(result.number, {"role": "user", "content": labelled("of the tool result", parts)}))

    def _orphan(self, turn: _Turn) -> None:
        """Write a tool result that belongs to no call: as it is, or as text of the user if the template cannot write
        it.
        """
        if self._traits.tool_results and self._traits.orphan_results:
            id = turn.message.get("tool_call_id")
            self._append(turn.with_fields(tool_call_id=self._nine(id)) if isinstance(id, str) else turn)
        else:
            self._result_as_text(turn, None)

    def _result_as_text(self, turn: _Turn, name: Any) -> None:
        name = turn.message.get("name", name)
        label = "tool result" if name is None else f"result of the tool {name}"
        self._convert(turn, "as text of the user")
        self._user(_Turn(turn.number, {"role": "user", "content": labelled(label, turn.content)}, is_labelled=True))

    # Fields.

    def _with_reasoning(self, turn: _Turn) -> _Turn:
        """Return an assistant message with its reasoning in the field in which the template reads it.

        If the template reads none, the message is returned without its reasoning, which is noted as left out.
        """
        field = self._traits.reasoning_field
        if REASONING not in turn.message or field == REASONING:
            return turn
        if not field:
            self._notes.leave_out(_field(turn, REASONING), "the chat template writes none")
            return turn.without(REASONING)
        return turn.without(REASONING).with_fields(**{field: turn.message[REASONING]})

    def _note_names(self, turns: Sequence[_Turn]) -> None:
        """Note that the names of speakers (the field `name`) are left out, for a template that does not write them.

        In a tool result, `name` is the name of the tool, so such messages are not concerned.
        """
        for turn in turns:
            if "name" in turn.message and turn.role in (*_INSTRUCTIONS, "user", "assistant"):
                self._notes.leave_out(_field(turn, "name"), "the chat template writes none")

    # Output.

    def _append(self, turn: _Turn) -> None:
        self._complete_last()
        self._written.append(turn)

    def _add_to_last(self, content: Content) -> None:
        self._more.append(content)

    def _complete_last(self) -> None:
        """Append the contents that `_add_to_last` has collected to the last written message.

        They are appended all at once because there may be thousands.
        """
        if self._more:
            last = self._written[-1]
            self._written[-1] = last.with_fields(content=joined(last.content, *self._more))
            self._more = []

    def _convert(self, turn: _Turn, form: str, *, field: str = "") -> None:
        self._notes.convert(_field(turn, field), form)


def _media(messages: Sequence[Message]) -> Iterator[Any]:
    for message in messages:
        yield from media_of(message.get("content"))


def _field(turn: _Turn, field: str) -> str:
    return f"messages[{turn.number}].{field}".removesuffix(".")


def _id(call: Any) -> Any:
    return call.get("id") if isinstance(call, Mapping) else None


def _parsed(arguments: str) -> Any:
    """Return the value of a tool call's arguments, given as JSON text; None if they are not valid JSON.

    An empty text stands for no arguments and gives {}.
    """
    try:
        value = json.loads(arguments or "{}")
        json.dumps(value, ensure_ascii=False).encode()  # escapes may stand for halves of characters
    except (ValueError, RecursionError):
        return None
    return value


def _call_as_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return f"[tool call: {json.dumps(call, ensure_ascii=False, default=str)}]"
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return f"[tool call: {function.get('name')} {arguments}]"


def _entries(kinds: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple(_entry(paths, kind) for kind, paths in kinds.items())


def _entry(paths: Sequence[str], kind: str) -> tuple[str, str]:
    more = len(dict.fromkeys(paths)) - 1
    return paths[0], f"{f' and {more} more' if more else ''} ({kind})"
