"""Builds output specs of chats, checks that their grammars compile, and caches them.

An agent sends the same tools with each request, and building a grammar from them is slow.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from dataclasses import replace
from weakref import WeakKeyDictionary

from genai_server.apis.shared.chat_parameters import ChatParameters
from genai_server.generation.output_spec import OutputSpec, chat_output_spec, starts_in_reasoning
from genai_server.grammar_checker.pool import GrammarChecker
from genai_server.text.codec import TextCodec

# Cached specs of one model. A grammar has at most 262,144 characters (`LONGEST_GRAMMAR`).
_MAX_KEPT = 32
# The fields that determine a grammar.
_FIELDS = {"tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs"}


class CheckedSpecs:
    """Builds and caches output specs. Owned by the event loop."""

    def __init__(self, grammars: GrammarChecker, *, best_effort: bool) -> None:
        self._grammars = grammars
        # Whether to enforce as much as possible of schemas that are not strict.
        self._best_effort = best_effort
        # Specs keyed by digest, least recently used first.
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
        spec = await self._build(body, codec, prompt)
        if spec.constraint is not None:  # the parts are only needed to find out which ones do not compile
            spec = replace(spec, constraint=replace(spec.constraint, parts=()))
        kept[key] = spec
        if len(kept) > _MAX_KEPT:
            kept.popitem(last=False)
        return spec

    async def _build(self, body: ChatParameters, codec: TextCodec, prompt: list[int]) -> OutputSpec:
        best_effort, loose = self._best_effort, frozenset[str]()
        while True:
            spec = await asyncio.to_thread(chat_output_spec, body, codec, prompt, best_effort=best_effort, loose=loose)
            more = frozenset[str]() if spec.constraint is None else await spec.constraint.check(self._grammars)
            if not more:
                return spec
            loose |= more


def _key(body: ChatParameters, codec: TextCodec, prompt: list[int]) -> bytes:
    """A digest that differs for chats with different specs."""
    # Pydantic's JSON would turn NaN into null.
    fields = json.dumps(body.model_dump(include=_FIELDS), default=str)
    return hashlib.sha256(f"{starts_in_reasoning(codec, prompt)}{fields}".encode()).digest()
