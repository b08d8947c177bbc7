"""Compare this server's parser of gpt-oss's messages with OpenAI's library, on random messages.

It needs the package openai-harmony and, in the folder VOCABULARY, the file o200k_base.tiktoken, which that library
would fetch. Ends with status 1 where the two differ.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import time
from typing import Any

from genai_server.answer_parts import WholeAnswer
from genai_server.text.answers.answer_parser import AnswerParser
from genai_server.text.answers.dialect import TOOL_FORMATS
from genai_server.text.answers.reasoning import HARMONY

_WORDS = ["Hm", " <b>", "\n", "to=", " so", "é", "😀", ' {"a": 1}', "functions.now", "<|", "|>", " analysis", "code"]
_ARGUMENTS = ["{}", '{"city": "Oslo \\"é😀\\n"}', '{"a": [1, {"b": null}]}', '{"text": "<b> to=x"}']
_BEFORE_TYPE = [" <|constrain|>json", "<|constrain|>json", ""]
# Between several messages of one kind.
_BETWEEN = "\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary", metavar="VOCABULARY")
    parser.add_argument("--count", type=int, default=2_000, help="answers in all (2000)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = arguments.vocabulary
    library = importlib.import_module("openai_harmony")
    encoding = library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)
    differing = 0
    for number in range(arguments.count):
        choose = random.Random(f"{arguments.seed} {number}")
        text = _answer(choose)
        tokens = encoding.encode(text, allowed_special="all")
        theirs, ours = _theirs(library, encoding, tokens), _ours(text, choose)
        if theirs != ours:
            differing += 1
            print(f"{text!r}\n  theirs: {theirs}\n  ours:   {ours}")
    print(f"seed {arguments.seed}: {differing} of {arguments.count} answers are read otherwise")
    sys.exit(bool(differing))


def _answer(choose: random.Random) -> str:
    """Some messages with words and calls."""
    written = []
    for _ in range(choose.randint(1, 4)):
        body = "".join(choose.choices(_WORDS, k=choose.randint(0, 6)))
        kind = choose.choice(["analysis", "commentary", "final", "call", "call"])
        if kind == "call":
            name = choose.choice(["now", "get_weather"])
            json_type = choose.choice(_BEFORE_TYPE)
            head = f"<|channel|>commentary to=functions.{name}{json_type}<|message|>"
            written.append(f"{head}{choose.choice(_ARGUMENTS)}<|call|>")
        else:
            written.append(f"<|channel|>{kind}<|message|>{body}<|end|>")
    return "<|start|>assistant".join(written)


def _theirs(library: Any, encoding: Any, tokens: list[int]) -> tuple[Any, ...]:
    stream = library.StreamableParser(encoding, role=library.Role.ASSISTANT)
    for token in tokens:
        stream.process(token)
    reasoning: list[str] = []
    content: list[str] = []
    calls = []
    for message in stream.messages:
        text = message.content[0].text
        if message.recipient and message.recipient.startswith("functions."):
            calls.append((message.recipient.removeprefix("functions."), json.loads(text)))
        elif text:
            (reasoning if message.channel == "analysis" else content).append(text)
    return _BETWEEN.join(reasoning), _BETWEEN.join(content), calls


def _ours(text: str, choose: random.Random) -> tuple[Any, ...]:
    functions = {"now": None, "get_weather": None}
    parser = AnswerParser(
        TOOL_FORMATS["harmony"], functions, reasoning=HARMONY, starts_in_reasoning=False, new_id=lambda: "call"
    )
    whole, place = WholeAnswer(), 0
    while place < len(text):
        piece = text[place : place + choose.randint(1, 9)]
        place += len(piece)
        for part in parser.feed(piece):
            whole.add(part)
    for part in parser.finish():
        whole.add(part)
    return whole.reasoning, whole.content, [(call.name, json.loads(call.arguments)) for call in whole.tool_calls]


if __name__ == "__main__":
    main()
