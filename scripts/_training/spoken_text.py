"""Sentences for the demo model for speech: a closed vocabulary of commands, numbers, colors, days, cities and names."""

from __future__ import annotations

import re
import zlib
from random import Random


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ONES = _split("zero one two three four five six seven eight nine")
TEENS = _split("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
TENS = _split("twenty thirty forty fifty sixty seventy eighty ninety")
HELD_OUT_SHARE = 20  # one in this number of sentences is kept for the evaluation

WORDS: dict[str, tuple[str, ...]] = {
    "color": _split("red green blue yellow black white orange purple brown gray pink"),
    "day": _split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "when": ("today", "tomorrow", "tonight", "this evening", "next week", "in the morning"),
    "month": _split("January February March April May June July August September October November December"),
    "city": _split(
        "London Paris Berlin Madrid Rome Vienna Prague Athens Dublin Oslo Boston Chicago Denver Dallas Seattle Toronto "
        "Sydney Tokyo Moscow Cairo Delhi Lisbon Munich Geneva"
    ),
    "name": _split(
        "Anna Ben Clara David Emma Frank Grace Henry Julia Kevin Laura Martin Nina Oscar Peter Sarah Thomas"
    ),
    "room": ("kitchen", "bedroom", "living room", "bathroom", "garage", "office", "garden", "hall"),
    "device": _split("light lamp fan heater television radio oven printer computer camera"),
    "opening": ("window", "door", "curtain", "gate", "box"),
    "thing": _split("book key bag chair table cup bottle phone car bicycle jacket hat"),
    "animals": _split("cats dogs horses birds fish rabbits sheep chickens"),
    "food": _split(
        "apples bananas oranges tomatoes potatoes bread milk coffee tea rice eggs cheese butter sugar water"
    ),
    "weather": _split("sunny cloudy windy rainy cold warm hot"),
    "music": ("music", "some jazz", "the news", "a song", "my favorite song", "classical music"),
    "unit": ("seconds", "minutes", "hours"),
    "hour": ONES[1:] + TEENS[:3],
    "minute": ("fifteen", "thirty", "forty five"),
    "half": ("in the morning", "in the afternoon", "in the evening"),
}
TEMPLATES = (
    "Set a timer for {number} {unit}.",
    "Set an alarm for {time}.",
    "Wake me up at {time}.",
    "Wake me up at {time} on {day}.",
    "Turn on the {device}.",
    "Turn off the {device}.",
    "Turn on the {device} in the {room}.",
    "Turn off the {device} in the {room}.",
    "Please turn off all the lights.",
    "Switch the {device} to {color}.",
    "Open the {opening}.",
    "Close the {opening}.",
    "Please open the {opening} in the {room}.",
    "Can you close the {opening}, please?",
    "Play {music}.",
    "Play {music} in the {room}.",
    "Stop the music.",
    "Turn the volume up.",
    "Turn the volume down to {number}.",
    "Set the temperature to {number} degrees.",
    "It is {number} degrees in {city}.",
    "It is {weather} and {weather} in {city}.",
    "What is the weather in {city}?",
    "What is the weather like in {city} on {day}?",
    "Will it rain in {city} {when}?",
    "Will it be {weather} on {day}?",
    "What time is it in {city}?",
    "What day is it today?",
    "It is {time}.",
    "Call {name}.",
    "Call {name} {when}.",
    "Send a message to {name}.",
    "Remind me to call {name} on {day}.",
    "Remind me to buy {food} {when}.",
    "Add {food} and {food} to the shopping list.",
    "Add {number} {food} to the shopping list.",
    "We need {food}, {food} and {food}.",
    "How much {food} do we have?",
    "I would like {number} {food}, please.",
    "A cup of {food}, please.",
    "My phone number is {digits}.",
    "The code is {digits}.",
    "The answer is {number}.",
    "{number} plus {number} is {number}.",
    "{number} minus {number} is {number}.",
    "{digits}.",
    "Count from {number} to {number}.",
    "{name} is {number} years old.",
    "{name} lives in {city}.",
    "{name} has {number} {animals}.",
    "{name} and {name} arrive on {day}.",
    "I have {number} {color} {animals}.",
    "There are {number} {animals} in the garden.",
    "The {color} {thing} is in the {room}.",
    "The {thing} is {color}.",
    "The {thing} and the {thing} are {color}.",
    "Where is the {color} {thing}?",
    "Where is my {thing}?",
    "I cannot find the {thing}.",
    "Paint the {opening} {color}.",
    "The train to {city} leaves at {time}.",
    "The next train to {city} leaves in {number} minutes.",
    "We fly from {city} to {city} on {day}.",
    "How far is it from {city} to {city}?",
    "Book a table for {hour} at {time}.",
    "Book a room in {city} for {hour} nights.",
    "The meeting is on {day} at {time}.",
    "The meeting with {name} is in room {number}.",
    "My birthday is in {month}.",
    "Today is {day}, {month} {number}.",
    "The shop opens at {time}.",
    "Good morning, {name}.",
    "Good evening, {name}. How are you?",
    "Hello {name}, this is {name}.",
    "Thank you very much.",
    "Thank you, {name}.",
    "Yes, please.",
    "No, thank you.",
    "See you on {day}.",
    "See you {when} in {city}.",
)


def number(value: int) -> str:
    """In words, from 0 to 100."""
    if value == 100:
        return "one hundred"
    if value < 20:
        return (ONES + TEENS)[value]
    tens, ones = divmod(value, 10)
    return TENS[tens - 2] + (f" {ONES[ones]}" if ones else "")


def sentence(rng: Random, *, held_out: bool = False) -> str:
    """One of the training text, or one that it never has."""
    while True:
        template = rng.choice(TEMPLATES)
        text = re.sub(r"{(\w+)}", lambda found: _fill(found[1], rng), template)
        text = text[0].upper() + text[1:]
        if is_held_out(text) == held_out:
            return text


def is_held_out(text: str) -> bool:
    """By a hash, so that both sides are fixed; sentences that are a template as it stands are trained."""
    return text not in TEMPLATES and zlib.crc32(text.encode()) % HELD_OUT_SHARE == 0


def _fill(slot: str, rng: Random) -> str:
    if slot == "number":
        return number(rng.choice((rng.randint(0, 20), rng.randint(20, 100))))
    if slot == "digits":
        return " ".join(rng.choice(ONES) for _ in range(rng.randint(3, 8)))
    if slot == "time":
        hour, form = rng.choice(WORDS["hour"]), rng.random()
        if form < 0.4:
            return hour
        return f"{hour} {rng.choice(WORDS['minute' if form < 0.7 else 'half'])}"
    return rng.choice(WORDS[slot])


def plain_words(text: str) -> list[str]:
    """What a comparison counts: words without case and punctuation."""
    return re.sub(r"[^a-z ]", "", text.lower()).split()
