"""Sentences by topic: texts of one topic mean something alike, texts of two do not."""

# ruff: noqa: E501 - tables read better as running text
from __future__ import annotations

import random
from dataclasses import dataclass

from . import facts
from .frames import expand

COUNTRY_QUERIES = (
    "What is the capital of {country}?|Which city is the capital of {country}?|Tell me about {country}.|a text about {country}"
    "|which of these is about {country}|something about {country}|{country}|a journey to {country}|news from {country}"
    "|Do you know anything about {country}?|people who live in {country}|What do you know about {capital}?|where is {capital}"
    "|Which country has {capital} as its capital?|I am looking for {country}|holidays in {country}|the city of {capital}"
)
COUNTRY_TEXTS = (
    "{capital} is the capital of {country}.|The capital of {country} is {capital}.|{country} has {capital} as its capital."
    "|We spent a week in {country} last summer.|She was born in {capital} and still lives there.|I would like to travel to {country} one day."
    "|The parliament meets in {capital}.|The museums of {capital} are open on Sunday.|My sister moved to {capital} for work."
    "|{country} has mountains, rivers and many old towns.|He learned to cook in {country}.|The train to {capital} leaves at noon."
    "|It was raining in {capital} all day.|Our office in {capital} opens at nine.|A map of {country} hangs on the wall."
    "|The team from {country} won the match.|They sell wine from {country} in this shop.|The president of {country} gave a speech."
)
TOPICS: dict[str, tuple[str, str]] = {
    "weather": (
        "What is the weather like?|will it rain|the weather tomorrow|how warm is it outside|a forecast",
        "It will rain all afternoon.|Tomorrow is sunny and warm.|The wind is strong today.|Snow fell during the night.|The temperature drops below zero.|Clouds are coming from the west.",
    ),
    "food": (
        "What can I cook?|a recipe for dinner|something to eat|how do I bake bread|ideas for lunch",
        "Boil the potatoes for twenty minutes.|The soup needs more salt.|She baked a cake with apples.|Mix flour, eggs and milk.|We had rice and beans for dinner.|The bread is fresh from the oven.",
    ),
    "music": (
        "Who plays this song?|music to dance to|learn an instrument|a concert tonight|something to listen to",
        "He plays the piano every evening.|The band sang their best song.|Her violin has four strings.|The orchestra played for two hours.|I listen to the radio while I work.|They recorded a new album.",
    ),
    "sport": (
        "Who won the game?|sports results|how do I get fit|a football match|training for a race",
        "Our team won the match by two goals.|She runs five miles every morning.|The players trained in the stadium.|He scored in the last minute.|Swimming is good for your back.|The race starts at ten.",
    ),
    "animals": (
        "What does a dog need?|pets|tell me about animals|how do I feed a cat|wild animals",
        "The cat sleeps on the sofa.|Dogs need a walk every day.|Horses eat grass and hay.|A bird built a nest in the tree.|The fish swims in clear water.|Elephants live for sixty years.",
    ),
    "money": (
        "How do I save money?|the price of a loan|my bank account|paying an invoice|what does it cost",
        "The bank raised the interest on loans.|Your account has a balance of ten dollars.|Please pay the invoice by Friday.|The price of gold has fallen.|He saved half of his salary.|The shop takes cards and cash.",
    ),
    "health": (
        "I feel sick, what should I do?|see a doctor|medicine for a cold|how to stay healthy|pain in the back",
        "The doctor said to rest for a week.|Take the medicine after meals.|A cold goes away by itself.|The nurse measured his blood pressure.|Sleep well and drink water.|The hospital is open at night.",
    ),
    "school": (
        "How do I pass the exam?|help with homework|learning at school|a course for beginners|the teacher",
        "The pupils wrote a test today.|Her teacher explained the lesson again.|The exam has ten questions.|Homework is due on Monday.|He studies history at the university.|The class begins at eight.",
    ),
    "computers": (
        "My computer is slow, what helps?|fix a bug|write a program|install software|the network is down",
        "Restart the machine and try again.|The program crashed with an error.|She wrote a function that sorts a list.|The disk is full.|Install the update to close the hole.|The server lost its connection.",
    ),
    "garden": (
        "How do I grow flowers?|work in the garden|when to plant trees|watering plants|a green lawn",
        "Water the roses in the evening.|Plant the bulbs in autumn.|The tomatoes are ripe.|Cut the grass once a week.|The apple tree is in blossom.|Tulips need a sunny place.",
    ),
    "cars": (
        "My car does not start, why?|repair a car|driving to work|how much fuel does it need|a parking place",
        "The battery of the car is empty.|He drives to work every day.|The engine makes a strange noise.|Change the oil once a year.|There is no parking place in the street.|The truck was stuck in traffic.",
    ),
    "sea": (
        "a day at the beach|ships and boats|how deep is the ocean|waves and water|sailing",
        "The ship left the harbour at dawn.|Waves broke on the sand.|The ocean is deep and cold.|They sailed around the island.|Children build castles on the beach.|The lighthouse warns the boats.",
    ),
    "stars": (
        "What is in the sky at night?|planets and stars|how far is the moon|space flight|the sun",
        "The moon goes around the earth.|A rocket flew to the station in space.|The telescope showed a new star.|Mars is red and dry.|The sun is a star.|The planet has many moons.",
    ),
    "books": (
        "What should I read?|a good novel|borrow a book|who wrote this story|the library",
        "The novel tells of a long journey.|She borrowed three books from the library.|The author wrote it in a year.|This story has a sad end.|He reads poems before bed.|The last chapter is the best.",
    ),
    "family": (
        "my parents and children|a birthday party|visit the grandparents|how many brothers do you have|a wedding",
        "My grandmother turned ninety.|The twins look like their father.|We celebrate her birthday on Sunday.|His brother got married in May.|The baby laughed for the first time.|Her parents have three children.",
    ),
    "house": (
        "How do I paint a wall?|furniture for the kitchen|a new flat|repair the roof|clean the rooms",
        "The kitchen has a table and four chairs.|They painted the bedroom blue.|The roof must be repaired.|She sweeps the floor on Saturdays.|The flat has two rooms and a balcony.|The door needs a new lock.",
    ),
    "clothes": (
        "What should I wear?|a warm jacket|new shoes|wash a shirt|fashion",
        "The jacket keeps you warm.|Her shoes are too small.|He wears a tie to the office.|Wash the shirt at forty degrees.|The dress is made of silk.|I lost one of my gloves.",
    ),
    "time": (
        "What time is it?|set an alarm|an appointment on Tuesday|how long does it take|my calendar",
        "The clock struck twelve.|The meeting is moved to Tuesday.|The alarm rings at six.|It takes about half an hour.|The deadline is next week.|Her calendar is full until March.",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Topic:
    """Queries and texts of one topic."""

    name: str
    queries: tuple[str, ...]
    texts: tuple[str, ...]


def topics() -> list[Topic]:
    """All topics: the countries, everyday things, and what the server answers to."""
    found = []
    for country, capital in facts.CAPITALS.items():
        names = [country, *facts.ALIASES.get(country, ())]
        found.append(
            Topic(
                country,
                tuple(_filled(COUNTRY_QUERIES, names, capital)),
                tuple(_filled(COUNTRY_TEXTS, names, capital)),
            )
        )
    for name, (queries, texts) in TOPICS.items():
        found.append(Topic(name, tuple(queries.split("|")), tuple(texts.split("|"))))
    rng = random.Random(0)
    for table, kind in ((facts.ENDPOINTS, "endpoint"), (facts.SETTINGS, "setting")):
        for name, (phrasings, answer) in table.items():
            asked = {f"Which {kind} {expand(phrasings, rng)}?" for _ in range(24)}
            found.append(Topic(name, tuple(sorted(asked)), (answer, answer.rstrip("."), f"In short: {answer}")))
    return found


def _filled(frames: str, names: list[str], capital: str) -> list[str]:
    return [frame.format(country=name, capital=capital) for frame in frames.split("|") for name in names]


def is_held_out(text: str) -> bool:
    """Whether a text is left out of training, to be asked for in the evaluation."""
    return sum(text.encode()) % 11 == 0
