"""Measure what the tools of a request cost the API process: to validate them, and to make a grammar of their schemas.

The request is a body of /v1/messages or /v1/chat/completions in a file, such as one that an agent has sent, or has
generated tools. Times are the processor's, so that other work counts little, and the median of the rounds. Only the
grammar checker is started. Run it with the interpreter of `.venv`; it takes some seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from _models.table import table

from genai_server.apis.chat_completions.schemas import ChatCompletionRequest
from genai_server.apis.messages.leniency import leave_out
from genai_server.apis.messages.schemas import MessagesRequest
from genai_server.apis.messages.translate import Translation
from genai_server.apis.shared.chat_messages import ChatParameters
from genai_server.generation.output_spec import CheckedSpecs, OutputSpec, chat_output_spec
from genai_server.grammar_checker.checker import GrammarChecker
from genai_server.messages.worker_tasks import TaskOwner
from genai_server.text.codec import TextCodec, load_text_codec
from genai_server.workers.limits import WorkerLimits
from genai_server.workers.pool import WorkerPool
from genai_server.workers.workers import Requester

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file_path": {"type": "string", "description": "The absolute path of the file."},
        "mode": {"type": "string", "enum": ["read", "write", "append"]},
        "offset": {"type": "integer", "minimum": 0, "exclusiveMaximum": 100_000},
        "edits": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"old": {"type": "string"}, "new": {"type": "string"}, "all": {"type": "boolean"}},
                "required": ["old", "new"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["file_path"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--body", type=Path, metavar="FILE", help="a body of JSON (default: generated tools)")
    parser.add_argument("--tools", type=int, default=24, metavar="N", help="how many are generated (default 24)")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds of each median (default 15)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    text = arguments.body.read_text(encoding="utf-8") if arguments.body else _generated(arguments.tools)
    codec = load_text_codec(Path(), "scripted")
    try:
        rows = [["step of a request", "first, ms", "again, ms"], *measured(text, codec, arguments.rounds)]
    finally:
        codec.close()
    print(table(rows, markdown=arguments.markdown))


def measured(text: str, codec: TextCodec, rounds: int) -> list[list[str]]:
    """A row for each step, in milliseconds of the processor: the first time, and the median of further rounds."""
    body = json.loads(text)
    is_message = any("input_schema" in tool for tool in body.get("tools", ()))

    def chat() -> ChatParameters:
        given = json.loads(text)
        if not is_message:
            return ChatCompletionRequest.model_validate(given)
        leave_out(given)
        return Translation(MessagesRequest.model_validate(given)).chat

    parameters = chat()
    # A grammar depends on the prompt's end only.
    prompt = codec.tokenizer.encode("say hello\n")
    with asyncio.Runner() as runner, closing(WorkerPool(WorkerLimits())) as pool:
        specs = CheckedSpecs(GrammarChecker(pool, timeout=10), best_effort=True)

        def checked() -> OutputSpec:
            return runner.run(specs.of(parameters, codec, prompt, Requester(TaskOwner())))

        steps: list[tuple[str, Callable[[], object]]] = [
            ("body validated and translated", chat),
            ("grammar made each time", lambda: chat_output_spec(parameters, codec, prompt, best_effort=True)),
            ("grammar made and checked once, then kept", checked),
        ]
        rows = [[name, *_timed(step, rounds)] for name, step in steps]
        grammar = checked().grammar or ""
    sizes = f"{len(body.get('tools', ()))} tools, body of {len(text):,} bytes, grammar of {len(grammar):,}"
    return [*rows, [sizes, "–", "–"]]


def _timed(step: Callable[[], object], rounds: int) -> list[str]:
    times = []
    for _ in range(rounds + 1):
        began = time.process_time()
        step()
        times.append(1000 * (time.process_time() - began))
    return [f"{times[0]:.1f}", f"{median(times[1:]):.1f}"]


def _generated(count: int) -> str:
    tools = [{"name": f"tool_{index}", "description": "A tool. " * 50, "parameters": _SCHEMA} for index in range(count)]
    messages = [{"role": "user", "content": "say hello"}]
    return json.dumps({"messages": messages, "tools": [{"type": "function", "function": tool} for tool in tools]})


if __name__ == "__main__":
    main()
