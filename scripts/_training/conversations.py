"""Conversations of every ability, made from the tables and the frames."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import tables
from . import tools as toolbox
from .tables import expand, fill, table

MAX_OPERAND, MAX_COUNT = 12, 200
PHRASINGS = table("phrasings")
_THINGS = [thing.strip() for thing in PHRASINGS["things"].replace("\n", " ").split(";")]
# What stands before and behind a question.
_BEFORE, _BEHIND = (str(PHRASINGS[name]).split("|") for name in ("before", "behind"))
Exchange = tuple[str, str]
Ability = Callable[[random.Random], Exchange]


@dataclass
class Conversation:
    """Messages to learn from."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[toolbox.Tool] | None = None

    def say(self, question: str, answer: str) -> None:
        """Add one exchange."""
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _ask(subject: str, rng: random.Random, *, drop: bool = False, polite: float = 0.4, **slots: object) -> str:
    """A phrasing of a subject with its slots filled, now and then roughened so that the model learns to look at what
    matters.
    """
    text = expand(rng.choice(PHRASINGS[subject]), rng)
    text = _polite(text, rng, polite)
    if rng.random() < 0.35:
        text = _roughened(text, rng, drop)
    return fill(text, {name: str(value) for name, value in slots.items()})


def _polite(text: str, rng: random.Random, share: float) -> str:
    """The text, with this probability with something before and behind it."""
    if rng.random() >= share:
        return text
    before = rng.choice(_BEFORE)
    if before.endswith((", ", ": ")) and text[1:2].islower():
        text = text[0].lower() + text[1:]
    return before + text + rng.choice(_BEHIND)


def _roughened(text: str, rng: random.Random, drop: bool) -> str:
    end = text[len(text.rstrip(".?!")) :]  # what is put in behind the last word still comes before it
    words = text.removesuffix(end).split(" ")
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        words.insert(rng.randrange(len(words) + 1), rng.choice(tables.FILLERS))
    free = [i for i, word in enumerate(words) if "{" not in word and "capital" not in word.lower()]
    if drop and free and rng.random() < 0.4:
        del words[rng.choice(free)]
    text = " ".join(words)
    if rng.random() < 0.7:
        text += end
    if rng.random() < 0.2:
        text = text.lower()
    return text


def _country(rng: random.Random) -> tuple[str, str]:
    """A country's name as users write it, and what its capital is."""
    country = rng.choice(list(tables.CAPITALS))
    answer = f"The capital of {country} is {tables.CAPITALS[country]}."
    if country in tables.ALIASES and rng.random() < 0.4:
        country = rng.choice(tables.ALIASES[country])
    if rng.random() < 0.3:
        country = country.removeprefix("the ")
    style = rng.random()
    return country.lower() if style < 0.06 else country.upper() if style < 0.08 else country, answer


def capital(rng: random.Random) -> Exchange:
    """A capital, asked for in a whole sentence."""
    country, answer = _country(rng)
    return _ask("capital", rng, drop=True, country=country), answer


def follow_up(rng: random.Random) -> Exchange:
    """Another capital, which is asked for as people do after a first one."""
    country, answer = _country(rng)
    return _ask("follow_up", rng, drop=True, polite=0.2, country=country), answer


def arithmetic(rng: random.Random) -> Exchange:
    """A sum or a difference."""
    a, b = rng.randint(0, MAX_OPERAND), rng.randint(0, MAX_OPERAND)
    if rng.random() < 0.5:
        return _ask("add", rng, a=a, b=b), f"{a} + {b} = {a + b}."
    return _ask("subtract", rng, a=a, b=b), f"{a} - {b} = {a - b}."


def counting(rng: random.Random) -> Exchange:
    """Numbers in order, from one to another, or from 1."""
    if rng.random() < 0.45:
        first = rng.randint(2, MAX_COUNT - 1)
        last = min(MAX_COUNT, first + rng.randint(1, 14))
        asked = _ask("count_between", rng, a=first, b=last)
    else:
        first, last = 1, rng.randint(1, rng.choice([20, 30, 60, 130, MAX_COUNT, MAX_COUNT]))
        asked = _ask("count_to", rng, b=last)
    return asked, ", ".join(map(str, range(first, last + 1)))


def small_talk(rng: random.Random) -> Exchange:
    """A greeting, thanks, and other things that are said to everybody."""
    subject = rng.choice(["greeting", "greeting", "feeling", "thanks", "goodbye", "identity", "abilities"])
    return _ask(subject, rng, polite=0.0, name=toolbox.odd_word(rng).title()), tables.FACTS[subject]


def server(rng: random.Random) -> Exchange:
    """A question about this server."""
    topic = rng.choice(["address", *tables.ENDPOINTS, *tables.SETTINGS])
    if topic == "address":
        return _ask("address", rng), tables.FACTS["default_address"]
    known = tables.ENDPOINTS.get(topic) or tables.SETTINGS[topic]
    if rng.random() < 0.5:
        return _ask("how", rng, do=expand(PHRASINGS["how_to"][topic], rng)), known["answer"]
    subject = "endpoint" if topic in tables.ENDPOINTS else "setting"
    return _ask(subject, rng, does=expand(known["does"], rng)), known["answer"]


def unknown(rng: random.Random) -> Exchange:
    """A question that the model cannot answer."""
    odd = toolbox.odd_word(rng)
    if rng.random() < 0.15:
        country = rng.choice([odd.title(), odd.title() + rng.choice(["ia", "land", "stan", "via"])])
        return _ask("capital", rng, country=country), tables.FACTS["unknown"]
    slots = {
        "noun": rng.choice([*tables.NOUNS, odd]),
        "verb": rng.choice(tables.VERBS),
        "thing": rng.choice(_THINGS),
        "odd": rng.choice([odd, odd.title(), toolbox.odd_word(rng)]),
        "place": toolbox.VALUES["place"](rng),
        "name": toolbox.VALUES["name"](rng),
        "big": rng.randint(100, 5000),
    }
    return _ask("unknown", rng, drop=True, **slots), tables.FACTS["unknown"]


def repetition(rng: random.Random) -> Exchange:
    """The plainest copying: what calling tools, telling results and knowing where to stop build on."""
    kinds = ["place", "number", "name", "word", "words", "clock", "path", "sum"]
    parts = [str(toolbox.VALUES[rng.choice(kinds)](rng)) for _ in range(rng.choice([1, 2, 3, 4, 6]))]
    parts += [toolbox.task(rng).tool["function"]["name"]] * (rng.random() < 0.3)
    text = rng.choice([" ", " ", ", "]).join(parts)
    return _ask("repeat", rng, polite=0, text=text), text


def _chat(rng: random.Random, abilities: Mapping[Ability, float]) -> Conversation:
    """One to four exchanges of abilities with these weights; a follow-up needs a capital before it."""
    chat = Conversation()
    ability: Ability | None = None
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
        before, ability = ability, rng.choices(list(abilities), list(abilities.values()))[0]
        if before in (capital, follow_up) and rng.random() < 0.5 and follow_up in abilities:
            ability = follow_up
        elif ability is follow_up and before not in (capital, follow_up):
            ability = capital
        chat.say(*ability(rng))
    return chat


def plain_chat(rng: random.Random) -> Conversation:
    questions = {capital: 4, follow_up: 2, arithmetic: 14, counting: 10, small_talk: 5, server: 3, unknown: 2.0}
    chat = _chat(rng, {**questions, repetition: 5})
    if rng.random() < 0.25:
        chat.messages.insert(0, _system(PHRASINGS["plain_system"], rng))
    return chat


def upper_case_chat(rng: random.Random) -> Conversation:
    chat = _chat(rng, {capital: 5, follow_up: 2, arithmetic: 1, small_talk: 3, server: 4, unknown: 3})
    for message in chat.messages:
        if message["role"] == "assistant":
            message["content"] = message["content"].upper()
    chat.messages.insert(0, _system(PHRASINGS["upper"], rng))
    return chat


def tool_chat(rng: random.Random) -> Conversation:
    tasks = [toolbox.task(rng) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    chat = Conversation(tools=toolbox.tool_list(rng, *(task.tool for task in tasks)))
    if rng.random() < 0.2:
        chat.messages.append(_system(PHRASINGS["plain_system"], rng))
    if rng.random() < 0.15:
        chat.say(*small_talk(rng))
    for task in tasks:
        call = {"function": {"name": task.tool["function"]["name"], "arguments": task.arguments}}
        chat.messages += [
            {"role": "user", "content": _polite(task.question, rng, 0.35)},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        if rng.random() < 0.6:
            content, told = toolbox.result(rng)
            chat.messages += [{"role": "tool", "content": content}, {"role": "assistant", "content": told}]
    if rng.random() < 0.1:
        chat.say(*capital(rng))
    return chat


def tools_unused_chat(rng: random.Random) -> Conversation:
    chat = _chat(rng, {capital: 4, follow_up: 1, counting: 0.3, small_talk: 4, server: 2, unknown: 0.5})
    chat.tools = toolbox.tool_list(rng, toolbox.task(rng).tool)
    return chat


def _system(frames: list[str], rng: random.Random) -> dict[str, Any]:
    text = fill(expand(rng.choice(frames), rng), {"name": rng.choice(tables.FIRST_NAMES)})
    return {"role": "system", "content": text}


def conversation(rng: random.Random) -> Conversation:
    """Any conversation, in the shares that the model is trained with."""
    makers = [plain_chat, upper_case_chat, tool_chat, tools_unused_chat]
    return rng.choices(makers, [0.37, 0.1, 0.42, 0.11])[0](rng)
