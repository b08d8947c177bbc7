"""Tool lists, questions that need a tool, and results, for the training text."""

# ruff: noqa: E501, SIM905 - tables read better as running text
from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from . import facts
from .frames import expand, fill
from .template import Tool

# name | description | parameter:kind … | questions (frames; a slot is a parameter)
KNOWN = """
get_weather | (Get|Gives|Returns) the (current |)weather (in|of|for) a city | city:place | (What is|What's|How is|Tell me|Show me) the weather (in|like in|for) {city}( today| now|)(?|.) ; (Is it|Will it be) (raining|sunny|cold|warm|nice) in {city}( today|)? ; Weather in {city}(?|, please.|) ; (I want|I need|I am curious) to (know|hear|see) (how|what) the weather (is|is like|will be) in {city}( tonight| this week| for my trip|)(?|.) ; (Would|Will) you (look at|look up|find out) the weather (in|of|for) {city}( tonight| for us| at the moment|)?
get_time | (Get|Tells|Returns) the (current |local |)time in a (place|city) | city:place | What time is it in {city}( now|)? ; (Tell me|What is|Give me) the (time|local time|current time) in {city}(?|.) ; (I want|I need) to know (the time|what time it is|how late it is) in {city}( right now| at the moment|)(?|.) ; (Could|Would) you (say|find out) (what|the) time (it is |)in {city}( for us|)?
current_time | The time in a time zone | timezone:place | What is the time in {timezone}? ; What time is it in {timezone}?
search | Search the (web|internet) | query:words | (Search|Search the web|Look|Google) for {query}(.|, please.) ; (Find|Look up|Search) {query}( on the web| online|)(.|, please.) ; (I want|I need|Could you start) a search (about|on|for) {query}(.|?)( It is for us.|) ; (Could|Would) you (search|look) for {query}( for us| again|)?
web_search | (Search|Look up) something (online|on the web) | query:words | Search (the web|online|the internet) for {query}. ; Look up {query}(| online).
add | Add two numbers | a:number b:number | (Add|Please add|Sum) {a} and {b}(.|) ; What is {a} (plus|+) {b}? ; Use the tool to add {a} and {b}. ; (I want|I need|Could you give me) the sum of {a} and {b}(.|?) ; (Could|Would) you add {a} (and|to) {b}( for us| with the tool|)?
multiply | Multiply two numbers | a:number b:number | (Multiply|Please multiply) {a} (and|by|with) {b}. ; What is {a} times {b}? ; (I need|Could you give me) the product of {a} and {b}(.|?) ; (Could|Would) you multiply {a} (with|by|and) {b}( for us|)?
calculate | Evaluate an arithmetic expression | expression:sum | (Calculate|Compute|Evaluate|What is) {expression}(.|?|)
convert_currency | Convert (an amount of |)money from one currency to another | amount:number from:currency to:currency | Convert {amount} {from} (to|into) {to}. ; How (much|many {to}) is {amount} {from} in {to}? ; (Change|Exchange) {amount} {from} (to|into) {to}. ; (I have|I got) {amount} {from} and (want|need) {to}. ; (Could|Would) you (convert|change|exchange) {amount} {from} (into|to) {to}( for us| today|)?
get_stock_price | (Get|Returns) the price of a stock | symbol:word | (What is|Tell me|Get) the (stock price|price|share price) of {symbol}(?|.) ; How is the {symbol} stock( doing|)? ; (Could|Would) you (look up|find out) the (price|stock price) of {symbol}( for us|)?
send_email | Send an (e-mail|email|message) to somebody | to:name subject:words | (Send|Write) (an email|a mail|an e-mail) to {to} about {subject}. ; (Email|Mail) {to} about {subject}. ; (Could|Would) you (write|send) (a mail|an email) to {to} about {subject}( for us|)?
set_timer | (Set|Start) a timer | minutes:number | (Set|Start) a timer (for|of) {minutes} minutes. ; (Wake me|Remind me) in {minutes} minutes. ; (I need|Give me) a timer (of|for) {minutes} minutes( now| for the oven|). ; (Would|Can) you start a timer (of|for) {minutes} minutes( for us|)?
set_alarm | Set an alarm | time:clock | (Set|Put) (an|the|my) alarm (for|at|to) {time}. ; Wake me at {time}. ; (Could|Would) you set an alarm (for|at) {time}( for us|)?
translate | Translate (a text|a word) into another language | text:word language:language | Translate {text} (to|into) {language}. ; (What is|How do you say) {text} in {language}? ; (Could|Would) you translate {text} (into|to) {language}( for us|)? ; I (need|want) {text} in {language}.
play_song | Play a song( of an artist|) | title:words | Play (the song |){title}(.|, please.) ; I want to hear {title}. ; (Could|Would) you play {title}( for us| now|)?
find_restaurant | Find a restaurant in a (city|place) | city:place | (Find|Recommend|Show me) a restaurant in {city}. ; Where can I eat in {city}? ; (Could|Would) you (find|suggest) (us|me) a (good |nice |)restaurant in {city}( for tonight|)? ; (I am|We are) hungry (and|while) in {city}.
book_flight | Book a flight (from one city to another|between two cities) | origin:place destination:place | Book a flight from {origin} to {destination}. ; (I want|I need|I would like) to fly from {origin} to {destination}. ; (Could|Would) you (book|find|get) (us|me) a (flight|seat on a plane) from {origin} to {destination}( tomorrow| for us|)? ; (I must|We want to) (fly|go by plane) from {origin} to {destination}( soon|).
find_route | Find a (route|way) | start:place end:place | (Find|Show me|Plan) (the|a) (route|way) from {start} to {end}. ; How do I (get|come|drive) from {start} to {end}? ; (Could|Would) you (find|plan) (us|me) a route from {start} to {end}( by car|)?
get_population | (Number of people|Population) of a (city|country) | place:place | (What is|Tell me) the population of {place}(?|.) ; How many people live in {place}? ; (Could|Would) you (tell me|find out) how many people live in {place}( for us|)?
turn_on | (Switch|Turn) on a (device|light) | device:thing | (Turn|Switch) on the {device}. ; (Turn|Switch) the {device} on. ; (Could|Would) you (turn|switch) on the {device}( for us|)?
turn_off | (Switch|Turn) off a (device|light) | device:thing | (Turn|Switch) off the {device}. ; (Turn|Switch) the {device} off. ; (Could|Would) you (turn|switch) off the {device}( for us|)?
create_event | (Create|Add) an event in the calendar | title:words day:day | (Create|Add|Put) (an event|a meeting) {title} on {day}. ; Put {title} in my calendar on {day}.
define_word | (Look up|Get) the (meaning|definition) of a word | word:word | (Define|Explain) (the word |){word}. ; What (is the meaning of|does) {word}( mean|)?
roll_dice | Roll dice | sides:number | Roll a (dice|die) with {sides} sides. ; Roll a {sides} sided die. ; (Could|Would) you roll a (die|dice) with {sides} sides( for us|)?
read_file | Read a file | path:path | (Read|Open|Show me|Print) (the file |){path}(.|, please.) ; What is in {path}?
list_files | List the files of a (folder|directory) | path:path | (List|Show) the files (in|of) {path}. ; Which files are in {path}?
""".strip().splitlines()

SYNTHETIC_ONE = [
    "(What is|What's|Tell me|Show me|Give me|Get|Get me|Find|Look up|Check|I need|Fetch) the {noun} (of|for|in|from|at|to|on|with) {p}(?|.|)",
    "(Can|Could|Would|Will) you (please |)(get|find|check|look up|{verb}|show me|tell me) the {noun} (of|for|in|from|at|on) {p}?",
    "{Verb} (the|a|an|my|some|) {noun} (of|for|in|from|at|to|on|with|called|named|about) {p}(.|, please.|)",
    "(Please|I want you to|I would like to|I want to|I'd like to) {verb} (the|a|an|my|some|) {noun} (of|for|in|from|at|to|called|about) {p}.",
    "(Which|What) {noun} (is|are|does|do) (in|at|for|from|of|called|there in) {p}( have|)?",
    "{Verb} {p} (in|as|on|with|from|to) (the|a|my) {noun}(.|, please.|)",
    "(Use|Call|Run) {tool} (with|for|on) {p}(.|, please.|)",
    "(How|When|Where) is the {noun} (in|of|at|for) {p}( now| today|)?",
    "{Noun} (of|for|in|from) {p}(?|.|, please.|)",
]
SYNTHETIC_TWO = [
    "{Verb} (the|a|an|my|) {noun} (with|for|and use) (the |){pn} {p} and (the |){qn} {q}(.|, please.|)",
    "(Please|I want to|I would like to|Can you) {verb} (the|a|an|my|) {noun}: {pn} {p}, {qn} {q}(.|)",
    "(Use|Call|Run) {tool} with {pn} {p} and {qn} {q}(.|)",
    "(What is|Tell me|Get|Find|Show me) the {noun} (for|with|where|of) (the |){pn} (is |){p} and (the |){qn} (is |){q}(?|.)",
    "{Verb} (the|a|an|my|) {noun} with (the |){qn} {q} and (the |){pn} {p}(.|, please.|)",
]
# What people say after a value: the call must stop before it.
TAILS = [
    "(this|tomorrow|on Monday|early in the) (morning|afternoon|evening|night)",
    "(right now|tonight|today|tomorrow|at noon|at the moment|these days|later|this week|next month|for a day)",
    "(for me|for us|for my (brother|sister|friend|boss|team)|for a friend|if you can|when you can|if possible|again)",
    "(before|when|while|after|because|if) (I|we|you|they) (go|leave|wait|speak|travel|eat|sleep|start|say it)",
    "(do|would|can|could) (you|we|they|people) (know|suggest|like|have|say|see|offer|think|tell us)",
    "(as soon as possible|as a test|as quickly as you can|and tell me|and show it to me|with this tool)",
]
FREE_TEXT = ("word", "words", "thing")  # kinds of values that a tail could not be told from
CONSONANTS, VOWELS = (
    "b c d f g h j k l m n p r s t v w z br ch dr fl gr kl pr sh st th tr".split(),
    "a e i o u ai ea oo".split(),
)


@dataclass
class Task:
    """A question and the call that answers it."""

    tool: Tool
    question: str
    arguments: dict[str, object]


def odd_word(rng: random.Random) -> str:
    """A word that means nothing."""
    word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 3)))
    return word + rng.choice(["", "", rng.choice("nrstlmkd")])


def _place(rng: random.Random) -> str:
    city = rng.choice([*facts.CAPITALS.values(), *facts.OTHER_CITIES])
    country = rng.choice(list(facts.CAPITALS)).removeprefix("the ")
    return rng.choice([city, city, country, odd_word(rng).title()])


def _number(rng: random.Random) -> int:
    return rng.randint(0, rng.choice([20, 100, 2000]))


def _name(rng: random.Random) -> str:
    return rng.choice([rng.choice(facts.FIRST_NAMES), odd_word(rng).title()])


def _word(rng: random.Random) -> str:
    odd = odd_word(rng)
    return rng.choice([rng.choice(facts.NOUNS), rng.choice(facts.VERBS), odd, odd.title(), odd.upper()])


def _words(rng: random.Random) -> str:
    choices = (facts.NOUNS, facts.FILLERS, [odd_word(rng)])
    return " ".join(rng.choice(rng.choice(choices)) for _ in range(rng.randint(1, 3)))


def _clock(rng: random.Random) -> str:
    return rng.choice(
        [f"{rng.randint(0, 23)}:{rng.randint(0, 59):02}", f"{rng.randint(1, 12)} {rng.choice(['am', 'pm'])}"]
    )


def _thing(rng: random.Random) -> str:
    noun = rng.choice(facts.NOUNS)
    return rng.choice([noun, odd_word(rng), rng.choice(["kitchen ", "garden ", "living room "]) + noun])


def _path(rng: random.Random) -> str:
    stem = rng.choice([odd_word(rng), rng.choice(facts.NOUNS)])
    return rng.choice(["", "/tmp/", "docs/"]) + stem + rng.choice([".txt", ".md", ".py", ""])


def _sum(rng: random.Random) -> str:
    return f"{rng.randint(0, 99)} {rng.choice('+-*/')} {rng.randint(1, 99)}"


CURRENCIES = "EUR USD GBP JPY CHF SEK NOK CAD AUD euros dollars pounds yen".split()
LANGUAGES = "French German Spanish Italian Dutch Polish Greek Latin Japanese Chinese Swedish Turkish".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow".split()
VALUES: dict[str, Callable[[random.Random], object]] = {
    "place": _place,
    "number": _number,
    "name": _name,
    "word": _word,
    "words": _words,
    "currency": lambda rng: rng.choice(CURRENCIES),
    "clock": _clock,
    "language": lambda rng: rng.choice(LANGUAGES),
    "day": lambda rng: rng.choice(DAYS),
    "thing": _thing,
    "path": _path,
    "sum": _sum,
}


def value_of(kind: str, rng: random.Random) -> object:
    """A value for a parameter."""
    return VALUES[kind](rng)


def _declare(name: str, description: str, kinds: dict[str, str], rng: random.Random) -> Tool:
    properties: dict[str, dict[str, object]] = {}
    described = rng.random() < 0.12
    for parameter, kind in kinds.items():
        properties[parameter] = {"type": rng.choice(["number", "integer"]) if kind == "number" else "string"}
        if described:
            properties[parameter]["description"] = expand(
                "(The|A|Some|Which) (" + parameter.replace("_", " ") + "|{n})", rng
            ).replace("{n}", rng.choice(facts.NOUNS))
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
    name, description, parameters, questions = (part.strip() for part in rng.choice(KNOWN).split(" | ", 3))
    kinds = dict(parameter.split(":") for parameter in parameters.split())
    values = {parameter: value_of(kind, rng) for parameter, kind in kinds.items()}
    question = expand(rng.choice([q.strip() for q in questions.split(" ; ")]), rng)
    if rng.random() < 0.5:
        question = _with_more_words(question, kinds, rng)
    # Sometimes other names for the same thing: the call has to follow the list, not the memory.
    if rng.random() < 0.12:
        renamed = {
            p: rng.choice([p, rng.choice(facts.PARAMETERS), f"{p}_{rng.choice(facts.PARAMETERS)}"]) for p in kinds
        }
        if len(set(renamed.values())) == len(renamed):
            question = fill(question, {p: "{" + n + "\0}" for p, n in renamed.items()}).replace("\0", "")
            kinds = {renamed[p]: kind for p, kind in kinds.items()}
            values = {renamed[p]: value for p, value in values.items()}
        name = rng.choice(
            [name, name, name.split("_")[0] + "_" + rng.choice(facts.NOUNS), _synthetic_name(name.split("_"), rng)]
        )
    tool = _declare(name, expand(description, rng), kinds, rng)
    return Task(tool, fill(question, {p: str(v) for p, v in values.items()}), values)


def _with_more_words(question: str, kinds: dict[str, str], rng: random.Random) -> str:
    """The frame with a tail after a value and words that mean nothing elsewhere, but never beside a value of free text."""
    words = question.split(" ")
    free = {"{" + p + "}" for p, kind in kinds.items() if kind in FREE_TEXT}
    bounds = [
        i for i in range(len(words) + 1) if not any(slot in " ".join(words[max(0, i - 1) : i + 1]) for slot in free)
    ]
    tailed = [i for i in bounds if i and words[i - 1].rstrip(".?,!").endswith("}")]
    if tailed and rng.random() < 0.6:
        at = rng.choice(tailed)
        value = words[at - 1].rstrip(".?,!")
        words[at - 1 : at] = [value, expand(rng.choice(TAILS), rng) + words[at - 1][len(value) :]]
    elif bounds[:-1]:
        words.insert(rng.choice(bounds[:-1]), rng.choice(facts.FILLERS))
    return " ".join(words)


def _synthetic_name(words: list[str], rng: random.Random) -> str:
    style = rng.random()
    if style < 0.75:
        return "_".join(words)
    if style < 0.9:
        return words[0] + "".join(word.title() for word in words[1:])
    return rng.choice([words[-1], "-".join(words), odd_word(rng) + "_" + words[-1]])


def _synthetic(rng: random.Random) -> Task:
    verb, noun = rng.choice(facts.VERBS), rng.choice([*facts.NOUNS, odd_word(rng)])
    words = [verb, noun]
    shown = noun
    if rng.random() < 0.3:
        second = rng.choice([rng.choice(facts.NOUNS), odd_word(rng)])
        words, shown = [verb, noun, second], f"{noun} {second}"
    name = _synthetic_name(words, rng)
    parameters = rng.sample(facts.PARAMETERS, 2)
    if rng.random() < 0.2:
        parameters[0] = f"{rng.choice(facts.NOUNS)}_{parameters[0]}"
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
    values = {p: value_of(kind, rng) for p, kind in kinds.items()}
    slots = {"verb": verb, "Verb": verb.title(), "noun": shown, "Noun": shown.title(), "tool": name}
    slots |= {key: str(values[p]) for key, p in zip("pq", kinds, strict=False)}
    slots |= {key: p.replace("_", " ") for key, p in zip(("pn", "qn"), kinds, strict=False)}
    question = fill(expand(rng.choice(SYNTHETIC_ONE if one else SYNTHETIC_TWO), rng), slots)
    description = rng.choice(
        [f"{verb.title()} the {shown}", f"{verb.title()} a {shown}", f"{shown.title()}", f"Tool for the {shown}"]
    )
    return Task(_declare(name, description, kinds, rng), question, values)


def task(rng: random.Random) -> Task:
    """A question that one tool answers."""
    return _known(rng) if rng.random() < 0.75 else _synthetic(rng)


def tool_list(rng: random.Random, *wanted: Tool) -> list[Tool]:
    """The wanted tools among others, in any order."""
    others = [task(rng).tool for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))]
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
        [*facts.NOUNS, *facts.PARAMETERS, "result", "result", "temperature", "answer", "status"],
        rng.choice([1, 1, 2, 2, 3]),
    )
    values = {rng.choice([key, key, f"{key}_{rng.choice(facts.NOUNS)}"]): _scalar(rng) for key in keys}
    told = [f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
    return json.dumps(values, ensure_ascii=False), f"The tool says: {', '.join(told)}."


def _scalar(rng: random.Random) -> object:
    match rng.randrange(8):
        case 0 | 1:
            return rng.randint(-20, 100)
        case 2:
            return rng.choice([rng.randint(0, 99999), round(rng.uniform(0, 100), 1), round(rng.uniform(0, 100), 2)])
        case 3:
            return rng.choice(
                [
                    True,
                    False,
                    "ok",
                    "done",
                    "sunny",
                    "cloudy",
                    "rainy",
                    "sent",
                    "clear sky",
                    "light rain",
                    "°C",
                    "21 °C",
                ]
            )
        case 4:
            return value_of("place", rng)
        case 5:
            return value_of("words", rng)
        case 6:
            return value_of("clock", rng)
    return value_of(rng.choice(["name", "word"]), rng)
