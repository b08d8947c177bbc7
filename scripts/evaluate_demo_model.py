"""Ask a demo model directory what it should be able to answer, greedily, and print the share of right answers.

The questions are phrased apart from the training text; that is checked first. Ends with status 1 when
capitals, counting or tool calls stay below 90 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from _models.card import write_table
from _models.environment import REPOSITORY, ensure_environment

AIM, MUST_HOLD = 0.9, ("capitals", "counting", "tool calls")
Message = dict[str, Any]
Tool = dict[str, Any]
Result = tuple[bool, str, str]  # right?, the question, the answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=REPOSITORY / "models" / "demo", metavar="DIR")
    parser.add_argument("--only", help="one ability of the table")
    parser.add_argument("--wrong", action="store_true", help="print every wrong answer")
    parser.add_argument(
        "--check-frames", action="store_true", help="only check that no phrasing is in the training text"
    )
    parser.add_argument("--card", action="store_true", help="write the table into the directory's README.md")
    arguments = parser.parse_args()
    ensure_environment()
    check_frames()
    if arguments.check_frames:
        return
    rows = examine(Model(arguments.directory), arguments.only, show_wrong=arguments.wrong)
    if arguments.card and not arguments.only:
        write_table(arguments.directory / "README.md", rows)
    sys.exit(any(right < AIM * asked for ability, right, asked in rows if ability in MUST_HOLD))


def examine(model: Model, only: str | None, *, show_wrong: bool) -> list[tuple[str, int, int]]:
    """Ask about every ability and print the table while it grows."""
    rows = []
    print(f"{'ability':<16}{'right':>7}{'asked':>7}{'share':>8}")
    for ability, questions in EXAMINATIONS.items():
        if only not in (None, ability):
            continue
        results = list(questions(model))
        right = sum(result[0] for result in results)
        rows.append((ability, right, len(results)))
        print(f"{ability:<16}{right:>7}{len(results):>7}{100 * right / len(results):>7.1f}%", flush=True)
        for ok, question, answer in results:
            if show_wrong and not ok:
                print(f"    {question!r} -> {answer!r}")
    return rows


def check_frames() -> None:
    """Stop when a phrasing of the evaluation is also one of the training text."""
    from _models.examination import OWN_FRAMES, shared_frames

    if shared := shared_frames():
        raise SystemExit("also in the training text:\n" + "\n".join(own for own, _ in shared))
    print(f"{len(OWN_FRAMES)} phrasings, none of them in the training text")


class Model:
    """A model directory, asked greedily."""

    def __init__(self, directory: Path) -> None:
        import onnxruntime_genai as og
        from _models.template import load_template

        self.genai = og
        self.model = og.Model(str(directory))
        self.tokenizer = og.Tokenizer(self.model)
        self.template = load_template(directory / "chat_template.jinja")
        self.context = json.loads((directory / "genai_config.json").read_text())["model"]["context_length"]

    def answer(self, messages: list[Message], tools: list[Tool] | None = None, limit: int = 160) -> str:
        """What the model says next."""
        from _models.template import render

        prompt = self.tokenizer.encode(render(self.template, messages, tools, answer_next=True))
        parameters = self.genai.GeneratorParams(self.model)
        parameters.set_search_options(do_sample=False, max_length=min(self.context, len(prompt) + limit))
        generator = self.genai.Generator(self.model, parameters)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        return str(self.tokenizer.decode(generator.get_sequence(0)[len(prompt) :]))

    def ask(self, question: str, tools: list[Tool] | None = None, limit: int = 160) -> str:
        return self.answer([{"role": "user", "content": question}], tools, limit)


def capitals(model: Model) -> Iterator[Result]:
    from _models.examination import CAPITAL
    from _models.facts import CAPITALS

    for frame, (country, city) in zip(cycle(CAPITAL), CAPITALS.items(), strict=False):
        question = frame.format(country=country)
        answer = model.ask(question)
        yield city in answer, question, answer


def follow_ups(model: Model) -> Iterator[Result]:
    from _models.examination import CAPITAL, FOLLOW_UP
    from _models.facts import CAPITALS

    rng = Random(1)
    for first, frame, (country, city) in zip(
        cycle(CAPITAL), cycle(FOLLOW_UP), list(CAPITALS.items())[::2], strict=False
    ):
        chat = [{"role": "user", "content": first.format(country=rng.choice(list(CAPITALS)))}]
        chat.append({"role": "assistant", "content": model.answer(chat)})
        chat.append({"role": "user", "content": frame.format(country=country)})
        answer = model.answer(chat)
        yield city in answer, chat[-1]["content"], answer


def arithmetic(model: Model) -> Iterator[Result]:
    from _models.conversations import MAX_OPERAND
    from _models.examination import ADD, SUBTRACT

    rng = Random(2)
    for number in range(60):
        a, b = rng.randint(0, MAX_OPERAND), rng.randint(0, MAX_OPERAND)
        frames, value = (ADD, a + b) if number % 2 else (SUBTRACT, a - b)
        question = frames[number // 2 % len(frames)].format(a=a, b=b)
        answer = model.ask(question)
        yield answer.rstrip(".").endswith(f"= {value}"), question, answer


def counting(model: Model) -> Iterator[Result]:
    from _models.examination import COUNT, COUNTED

    for frame, last in zip(cycle(COUNT), COUNTED, strict=False):
        answer = model.ask(frame.format(b=last), limit=1200)
        yield answer == ", ".join(map(str, range(1, last + 1))), frame.format(b=last), answer[-60:]


def small_talk(model: Model) -> Iterator[Result]:
    from _models.examination import SMALL_TALK

    for question, expected in SMALL_TALK:
        answer = model.ask(question)
        yield expected in answer, question, answer


def server(model: Model) -> Iterator[Result]:
    from _models.examination import SERVER

    for expected, questions in SERVER.items():
        for question in questions:
            answer = model.ask(question)
            yield expected in answer, question, answer


def upper_case(model: Model) -> Iterator[Result]:
    from _models.examination import CAPITAL, SMALL_TALK, UPPER
    from _models.facts import CAPITALS

    asked = [(f.format(country=c), CAPITALS[c]) for f, c in zip(cycle(CAPITAL), list(CAPITALS)[1::4], strict=False)]
    for system, (question, expected) in zip(cycle(UPPER), [*asked, *SMALL_TALK], strict=False):
        answer = model.answer([{"role": "system", "content": system}, {"role": "user", "content": question}])
        yield expected.upper() in answer and answer == answer.upper(), f"{system} | {question}", answer


def _tools(lines: list[str]) -> list[tuple[Tool, str, dict[str, object]]]:
    """Tools with a question and the arguments that it asks for."""
    cases = []
    for line in lines:
        name, description, parameters, question, values = line.split("|")
        types = dict(parameter.split(":") for parameter in parameters.split())
        given = [values] if len(types) == 1 else values.split()
        arguments: dict[str, object] = {
            parameter: value if kind == "string" else json.loads(value)
            for (parameter, kind), value in zip(types.items(), given, strict=True)
        }
        schema = {"type": "object", "properties": {p: {"type": t} for p, t in types.items()}, "required": list(types)}
        tool = {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
        cases.append((tool, question.format(**arguments), arguments))
    return cases


def _with_others(tool: Tool, lines: list[str], rng: Random) -> list[Tool]:
    others = {case[0]["function"]["name"]: case[0] for case in _tools(lines)}
    del others[tool["function"]["name"]]
    tools = [*rng.sample(list(others.values()), rng.randint(0, 2)), tool]
    rng.shuffle(tools)
    return tools


def _called(answer: str) -> tuple[str, object] | None:
    head, opening, rest = answer.partition("<tool_call>")
    body, closing, tail = rest.partition("</tool_call>")
    try:
        call = json.loads(body) if opening and closing and not head.strip() and not tail.strip() else {}
    except ValueError:
        return None
    return (call["name"], call["arguments"]) if {"name", "arguments"} == set(call) else None


def tool_calls(model: Model) -> Iterator[Result]:
    for questions in (held_out_tool_calls, consulted_tool_calls, rehearsed_tool_calls):
        yield from questions(model)


def held_out_tool_calls(model: Model) -> Iterator[Result]:
    from _models.examination import HELD_OUT_TOOLS

    yield from _calls(model, HELD_OUT_TOOLS)


def consulted_tool_calls(model: Model) -> Iterator[Result]:
    from _models.examination import CONSULTED_TOOLS

    yield from _calls(model, CONSULTED_TOOLS)


def rehearsed_tool_calls(model: Model) -> Iterator[Result]:
    from _models.examination import TOOLS

    yield from _calls(model, TOOLS)


def new_tool_calls(model: Model) -> Iterator[Result]:
    from _models.examination import NEW_TOOLS

    yield from _calls(model, NEW_TOOLS)


def _calls(model: Model, lines: list[str]) -> Iterator[Result]:
    rng = Random(3)
    for tool, question, arguments in _tools(lines) * 2:
        answer = model.ask(question, _with_others(tool, lines, rng))
        yield _called(answer) == (tool["function"]["name"], arguments), question, answer


def tool_results(model: Model) -> Iterator[Result]:
    from _models.examination import RESULTS, TOOLS

    rng = Random(4)
    for (tool, question, arguments), (content, expected) in zip(cycle(_tools(TOOLS)), RESULTS, strict=False):
        call = {"type": "function", "function": {"name": tool["function"]["name"], "arguments": arguments}}
        chat: list[Message] = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": content},
        ]
        answer = model.answer(chat, _with_others(tool, TOOLS, rng))
        yield all(part in answer for part in expected) and "<tool_call>" not in answer, content, answer


def tools_unused(model: Model) -> Iterator[Result]:
    from _models.examination import CAPITAL, SMALL_TALK, TOOLS
    from _models.facts import CAPITALS

    rng = Random(5)
    asked = [(f.format(country=c), CAPITALS[c]) for f, c in zip(cycle(CAPITAL), list(CAPITALS)[2::6], strict=False)]
    for (question, expected), (tool, _, _) in zip([*asked, *SMALL_TALK[:14]], cycle(_tools(TOOLS)), strict=False):
        answer = model.ask(question, _with_others(tool, TOOLS, rng))
        yield expected in answer, question, answer


def unknown(model: Model) -> Iterator[Result]:
    from _models.examination import UNKNOWN

    for question in UNKNOWN:
        answer = model.ask(question)
        yield "small demo model and do not know" in answer, question, answer


EXAMINATIONS: dict[str, Callable[[Model], Iterator[Result]]] = {
    "capitals": capitals,
    "follow-ups": follow_ups,
    "arithmetic": arithmetic,
    "counting": counting,
    "small talk": small_talk,
    "server": server,
    "upper case": upper_case,
    "tool calls": tool_calls,
    "held-out calls": held_out_tool_calls,
    "consulted calls": consulted_tool_calls,
    "rehearsed calls": rehearsed_tool_calls,
    "calls of new tools": new_tool_calls,
    "tool results": tool_results,
    "tools unused": tools_unused,
    "unknown": unknown,
}

if __name__ == "__main__":
    main()
