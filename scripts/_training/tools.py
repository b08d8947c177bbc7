"""Tool lists, questions that need a tool, and results, for the training text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import tables
from .tables import expand, fill, table, words

_TABLE = table("tools")
# What a search, an e-mail, a song or a device may be about or called: common words, a file for each kind.
NOUNS, OTHERS, NAMES, CITIES, STEMS, SONGS, SYMBOLS, DEVICES = map(
    words, ("nouns", "words", "names", "cities", "stems", "songs", "symbols", "devices")
)
WORDS = [*NOUNS, *OTHERS]
FREE_TEXT = ("word", "words", "thing")  # kinds of values that a tail could not be told from
Tool = dict[str, Any]


@dataclass
class Task:
    """A question and the call that answers it."""

    tool: Tool
    question: str
    arguments: dict[str, object]


def odd_word(rng: random.Random) -> str:
    """A word that means nothing."""
    word = "".join(rng.choice(tables.CONSONANTS) + rng.choice(tables.VOWELS) for _ in range(rng.randint(1, 3)))
    return word + rng.choice(["", "", rng.choice("nrstlmkd")])


def blended_word(rng: random.Random) -> str:
    """Pieces of words in a row, in any case: what may begin with any token has to be copied, not guessed."""
    word = "".join(_piece(rng) for _ in range(rng.choice([1, 2, 2, 3])))
    return rng.choice([word, word, word.title(), word.upper()])


def _piece(rng: random.Random) -> str:
    word = rng.choice(WORDS)
    start = rng.randrange(len(word) - 1)
    return word[start : start + rng.randint(2, 5)]


def _place(rng: random.Random) -> str:
    city = rng.choice([*tables.CAPITALS.values(), *tables.OTHER_CITIES])
    country = rng.choice(list(tables.CAPITALS)).removeprefix("the ")
    return rng.choice([city, country, rng.choice(CITIES), odd_word(rng).title(), blended_word(rng).title()])


def _number(rng: random.Random) -> int:
    return rng.randint(0, rng.choice([20, 100, 2000]))


def _name(rng: random.Random) -> str:
    listed = [rng.choice(tables.FIRST_NAMES), rng.choice(NAMES)]
    return rng.choice([*listed, odd_word(rng).title(), blended_word(rng).title()])


def _word(rng: random.Random) -> str:
    odd, blended = odd_word(rng), blended_word(rng)
    choices = [rng.choice(WORDS), blended, blended.title(), blended[: rng.randint(2, 5)].upper()]
    choices += [rng.choice(kind) for kind in (WORDS, SONGS, SYMBOLS, tables.NOUNS)]
    return rng.choice([*choices, odd, odd.title(), odd.upper()])


def _words(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice([rng.choice(WORDS), rng.choice(WORDS), rng.choice(SONGS), blended_word(rng)])
    choices = (WORDS, tables.NOUNS, tables.FILLERS, [odd_word(rng)])
    return " ".join(rng.choice(rng.choice(choices)) for _ in range(rng.randint(1, 3)))


def _clock(rng: random.Random) -> str:
    by_day = f"{rng.randint(0, 23)}:{rng.randint(0, 59):02}"
    return rng.choice([by_day, f"{rng.randint(1, 12)} {rng.choice(['am', 'pm'])}"])


def _thing(rng: random.Random) -> str:
    noun = rng.choice([rng.choice(DEVICES), rng.choice(tables.NOUNS), rng.choice(WORDS), blended_word(rng)])
    return rng.choice([noun, noun, odd_word(rng), rng.choice(["kitchen ", "garden ", "living room "]) + noun])


def _path(rng: random.Random) -> str:
    stem, folder = (
        rng.choice([odd_word(rng), rng.choice(STEMS), rng.choice(WORDS), rng.choice(NOUNS), blended_word(rng)])
        for _ in range(2)
    )
    before = rng.choice(["", "", "/tmp/", "docs/", f"{folder}/", f"/{folder}/"])
    return before + stem + rng.choice([".txt", ".md", ".py", ".csv", ""])


def _sum(rng: random.Random) -> str:
    space = rng.choice([" ", ""])
    return f"{rng.randint(0, 99)}{space}{rng.choice('+-*/')}{space}{rng.randint(1, 99)}"


def _figure(rng: random.Random) -> float:
    return rng.choice([rng.randint(0, 99999), round(rng.uniform(0, 100), 1), round(rng.uniform(0, 100), 2)])


# How values of parameters are drawn, by their kind.
VALUES: dict[str, Callable[[random.Random], object]] = {
    "place": _place,
    "number": _number,
    "name": _name,
    "word": _word,
    "words": _words,
    "currency": lambda rng: rng.choice(tables.CURRENCIES),
    "clock": _clock,
    "language": lambda rng: rng.choice(tables.LANGUAGES),
    "day": lambda rng: rng.choice(tables.DAYS),
    "thing": _thing,
    "path": _path,
    "sum": _sum,
    # Of results only.
    "degrees": lambda rng: rng.randint(-20, 100),
    "figure": _figure,
    "state": lambda rng: rng.choice([True, False, *_TABLE["results"]]),
}


def _declare(name: str, description: str, kinds: dict[str, str], rng: random.Random) -> Tool:
    properties: dict[str, dict[str, object]] = {}
    described = rng.random() < 0.12
    for parameter, kind in kinds.items():
        properties[parameter] = {"type": rng.choice(["number", "integer"]) if kind == "number" else "string"}
        if described:
            said = expand("(The|A|Some|Which) (" + parameter.replace("_", " ") + "|{n})", rng)
            properties[parameter]["description"] = said.replace("{n}", rng.choice(tables.NOUNS))
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.6:
        schema["required"] = list(kinds)
    if rng.random() < 0.1:
        schema["additionalProperties"] = False
    function: dict[str, object] = {"name": name}
    if rng.random() < 0.85:
        function["description"] = description + rng.choice(["", "", "."])
    function["parameters"] = schema
    return {"type": "function", "function": function}


def _known(rng: random.Random) -> Task:
    known = rng.choice(_TABLE["known"])
    name, kinds = known["name"], known["parameters"]
    values = {parameter: VALUES[kind](rng) for parameter, kind in kinds.items()}
    question = expand(rng.choice(known["questions"]), rng)
    if rng.random() < 0.5:
        question = _with_more_words(question, kinds, rng)
    # Sometimes other names for the same thing: the call has to follow the list, not the memory.
    if rng.random() < 0.12:
        renamed = {
            p: rng.choice([p, rng.choice(tables.PARAMETERS), f"{p}_{rng.choice(tables.PARAMETERS)}"]) for p in kinds
        }
        if len(set(renamed.values())) == len(renamed):
            question = fill(question, {p: "{" + n + "\0}" for p, n in renamed.items()}).replace("\0", "")
            kinds = {renamed[p]: kind for p, kind in kinds.items()}
            values = {renamed[p]: value for p, value in values.items()}
        name = rng.choice(
            [name, name, name.split("_")[0] + "_" + rng.choice(tables.NOUNS), _synthetic_name(name.split("_"), rng)]
        )
    tool = _declare(name, expand(known["description"], rng), kinds, rng)
    return Task(tool, fill(question, {p: str(v) for p, v in values.items()}), values)


def _with_more_words(question: str, kinds: dict[str, str], rng: random.Random) -> str:
    """The frame with a tail after a value and words that mean nothing elsewhere, but never beside free text."""
    words = question.split(" ")
    free = {"{" + p + "}" for p, kind in kinds.items() if kind in FREE_TEXT}
    bounds = [
        i for i in range(len(words) + 1) if not any(slot in " ".join(words[max(0, i - 1) : i + 1]) for slot in free)
    ]
    tailed = [i for i in bounds if i and words[i - 1].rstrip(".?,!").endswith("}")]
    if tailed and rng.random() < 0.6:
        at = rng.choice(tailed)
        value = words[at - 1].rstrip(".?,!")
        words[at - 1 : at] = [value, expand(rng.choice(_TABLE["tails"]), rng) + words[at - 1][len(value) :]]
    elif bounds[:-1]:
        words.insert(rng.choice(bounds[:-1]), rng.choice(tables.FILLERS))
    return " ".join(words)


def _synthetic_name(words: list[str], rng: random.Random) -> str:
    style = rng.random()
    if style < 0.75:
        return "_".join(words)
    if style < 0.9:
        return words[0] + "".join(word.title() for word in words[1:])
    return rng.choice([words[-1], "-".join(words), odd_word(rng) + "_" + words[-1]])


def _synthetic(rng: random.Random) -> Task:
    verb, nouns = rng.choice(tables.VERBS), [rng.choice([*tables.NOUNS, odd_word(rng)])]
    if rng.random() < 0.3:
        nouns.append(rng.choice([rng.choice(tables.NOUNS), odd_word(rng)]))
    name, shown = _synthetic_name([verb, *nouns], rng), " ".join(nouns)
    parameters = rng.sample(tables.PARAMETERS, 2)
    if rng.random() < 0.2:
        parameters[0] = f"{rng.choice(tables.NOUNS)}_{parameters[0]}"
    numeric = {"number", "amount", "unit", "level", "value"}
    kinds = {
        p: "number"
        if p in numeric or rng.random() < 0.1
        else rng.choice(["place", "name", "word", "words", "place", "day", "language"])
        for p in parameters
    }
    one = rng.random() < 0.65
    if one:
        kinds.pop(parameters[1])
    values = {p: VALUES[kind](rng) for p, kind in kinds.items()}
    slots = {"verb": verb, "Verb": verb.title(), "noun": shown, "Noun": shown.title(), "tool": name}
    slots |= {key: str(values[p]) for key, p in zip("pq", kinds, strict=False)}
    slots |= {key: p.replace("_", " ") for key, p in zip(("pn", "qn"), kinds, strict=False)}
    question = fill(expand(rng.choice(_TABLE["synthetic_one" if one else "synthetic_two"]), rng), slots)
    description = rng.choice(
        [f"{verb.title()} the {shown}", f"{verb.title()} a {shown}", f"{shown.title()}", f"Tool for the {shown}"]
    )
    return Task(_declare(name, description, kinds, rng), question, values)


def task(rng: random.Random) -> Task:
    """A question that one tool answers."""
    return _known(rng) if rng.random() < 0.75 else _synthetic(rng)


def tool_list(rng: random.Random, *wanted: Tool) -> list[Tool]:
    """The wanted tools among others, in any order."""
    others = [task(rng).tool for _ in range(rng.choice([0, 0, 1, 1, 2, 3] if len(wanted) == 1 else [0, 0, 0, 1, 2]))]
    named = {tool["function"]["name"]: tool for tool in [*others, *wanted]}
    tools = list(named.values())
    rng.shuffle(tools)
    return tools


def result(rng: random.Random) -> tuple[str, str]:
    """What a tool gives back, and how the assistant tells it."""
    if rng.random() < 0.4:
        pieces = [_scalar(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        plain = rng.choice([" ", " ", ", "]).join(str(piece) for piece in pieces)
        return plain, f"The tool says: {plain}."
    keys = rng.sample(
        [*tables.NOUNS, *tables.PARAMETERS, "result", "result", "temperature", "answer", "status"],
        rng.choice([1, 1, 2, 2, 3]),
    )
    values = {rng.choice([key, key, f"{key}_{rng.choice(tables.NOUNS)}"]): _scalar(rng) for key in keys}
    told = [f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
    return json.dumps(values, ensure_ascii=False), f"The tool says: {', '.join(told)}."


def _scalar(rng: random.Random) -> object:
    kind = rng.choice(["degrees", "degrees", "figure", "state", "place", "words", "clock", "name or word"])
    return VALUES[rng.choice(["name", "word"]) if kind == "name or word" else kind](rng)
