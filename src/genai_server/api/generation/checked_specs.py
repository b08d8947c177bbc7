"""The output specs of chats, with grammars that compile. Those used last are kept.

An agent sends the same tools with each request, and to make a grammar of them takes long.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from dataclasses import replace
from weakref import WeakKeyDictionary

from genai_server.api.generation.output_spec import OutputSpec, chat_output_spec, starts_in_reasoning
from genai_server.grammar_checker.pool import GrammarChecker
from genai_server.openai_api.schemas.chat import ChatParameters
from genai_server.text.codec import TextCodec

# Of one model. A grammar has at most 262,144 characters (`LONGEST_GRAMMAR`).
_MOST_KEPT = 32
# All that a grammar is made of.
_FIELDS = {"tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs"}


class CheckedSpecs:
    """Makes output specs. Owned by the event loop."""

    def __init__(self, grammars: GrammarChecker, *, best_effort: bool) -> None:
        self._grammars = grammars
        # Whether schemas that are not strict are followed as far as they can be.
        self._best_effort = best_effort
        # By their keys, the last used one last.
        self._kept: WeakKeyDictionary[TextCodec, OrderedDict[bytes, OutputSpec]] = WeakKeyDictionary()

    async def of(self, body: ChatParameters, codec: TextCodec, prompt: list[int]) -> OutputSpec:
        """The output spec of a chat with this encoded prompt. Raises InvalidField and CheckerUnavailable."""
        if not body.tools and body.response_format is None and body.structured_outputs is None:
            return chat_output_spec(body, codec, prompt, best_effort=self._best_effort)
        kept = self._kept.setdefault(codec, OrderedDict())
        key = await asyncio.to_thread(_key, body, codec, prompt)
        if (spec := kept.get(key)) is not None:
            kept.move_to_end(key)
            return spec
        spec = await self._made(body, codec, prompt)
        if spec.constraint is not None:  # its parts have served to find what does not compile
            spec = replace(spec, constraint=replace(spec.constraint, parts=()))
        kept[key] = spec
        if len(kept) > _MOST_KEPT:
            kept.popitem(last=False)
        return spec

    async def _made(self, body: ChatParameters, codec: TextCodec, prompt: list[int]) -> OutputSpec:
        best_effort, loose = self._best_effort, frozenset[str]()
        while True:
            spec = await asyncio.to_thread(chat_output_spec, body, codec, prompt, best_effort=best_effort, loose=loose)
            more = frozenset[str]() if spec.constraint is None else await spec.constraint.check(self._grammars)
            if not more:
                return spec
            loose |= more


def _key(body: ChatParameters, codec: TextCodec, prompt: list[int]) -> bytes:
    """Differs for chats whose specs do."""
    # Not Pydantic's JSON, which has null for NaN.
    fields = json.dumps(body.model_dump(include=_FIELDS), default=str)
    return hashlib.sha256(f"{starts_in_reasoning(codec, prompt)}{fields}".encode()).digest()
