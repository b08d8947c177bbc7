"""Questions about a drawing and their right answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from .conversations import Exchange
from .drawings import COLORS, SHAPES, Item, Scene, random_scene
from .tables import table

_PICTURES = table("pictures")
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
_CLEAR = 0.04  # a place so near to the line between two thirds of the picture is not asked for


def _a(words: str) -> str:
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def _name(item: Item) -> str:
    return f"{item.color} {item.kind}"


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _of_kind(scene: Scene, kind: str) -> list[Item]:
    return [item for item in scene.shapes if item.kind == kind]


def _lone(scene: Scene, rng: random.Random) -> Item | None:
    """Some shape that is the only one of its kind."""
    lone = [item for item in scene.shapes if len(_of_kind(scene, item.kind)) == 1]
    return rng.choice(lone) if lone else None


Answer = tuple[dict[str, str], str]  # what fills a phrasing's slots, and the answer


def _describe(scene: Scene, rng: random.Random) -> Answer | None:
    if len(scene.digits) == 2:
        shown = [f"the {scene.digits[0].color} number {scene.digits[0].kind}{scene.digits[1].kind}"]
    else:
        shown = [f"the {_name(item)}" if item.is_digit else _a(_name(item)) for item in scene.items]
    return {}, f"The picture shows {_list(shown)} on a {scene.background} background."


def _color_of(scene: Scene, rng: random.Random) -> Answer | None:
    known = rng.choice(scene.shapes).kind if scene.shapes else rng.choice(SHAPES)
    kind = known if rng.random() < 0.92 else rng.choice(SHAPES)
    found = _of_kind(scene, kind)
    if not found:
        return {"kind": kind}, f"There is no {kind} in the picture."
    if len(found) == 1:
        return {"kind": kind}, f"The {kind} is {found[0].color}."
    colors = list(dict.fromkeys(item.color for item in found))
    return {"kind": kind}, f"The {kind}s are {_list(colors)}."


def _shape_of(scene: Scene, rng: random.Random) -> Answer | None:
    if not scene.shapes:
        return None
    color = rng.choice(scene.shapes).color
    if any(item.color == color for item in scene.digits):
        return None
    found = [item for item in scene.shapes if item.color == color]
    if len(found) == 1:
        return {"color": color}, f"The {color} shape is a {found[0].kind}."
    return {"color": color}, f"The {color} shapes are {_list([_a(item.kind) for item in found])}."


def _counted(count: int, thing: str) -> str:
    if count == 1:
        return f"There is 1 {thing}."
    return f"There are {count or 'no'} {thing}s."


def _count_kind(scene: Scene, rng: random.Random) -> Answer | None:
    if not scene.shapes:
        return None
    if rng.random() < 0.5:
        kind = rng.choice(scene.shapes).kind if rng.random() < 0.85 else rng.choice(SHAPES)
        return {"kinds": kind + "s"}, _counted(len(_of_kind(scene, kind)), kind)
    color = rng.choice(scene.shapes).color if rng.random() < 0.85 else rng.choice(list(COLORS))
    count = sum(item.color == color for item in scene.shapes)
    return {"kinds": f"{color} shapes"}, _counted(count, f"{color} shape")


def _exists(scene: Scene, rng: random.Random) -> Answer | None:
    """Of a kind or of a kind and a color; half of the answers are yes."""
    if not scene.shapes:
        return None
    known = rng.choice(scene.shapes)
    with_color = rng.random() < 0.6
    kind, color = known.kind, known.color
    if rng.random() < 0.5:
        # As near to the truth as a question whose answer is no can be: one thing of two is right.
        if not with_color or rng.random() < 0.5:
            kind = rng.choice(SHAPES)
        else:
            color = rng.choice([color for color in COLORS if color != scene.background])
    thing = f"{color} {kind}" if with_color else kind
    found = any(item.kind == kind and (item.color == color or not with_color) for item in scene.shapes)
    answer = f"Yes, there is {_a(thing)}." if found else f"No, there is no {thing}."
    return {"a_thing": _a(thing), "things": thing + "s"}, answer


def _is_color(scene: Scene, rng: random.Random) -> Answer | None:
    item = _lone(scene, rng)
    if item is None:
        return None
    color = item.color if rng.random() < 0.5 else rng.choice(list(COLORS))
    said = f"the {item.kind} is {item.color}."
    return {"kind": item.kind, "color": color}, f"Yes, {said}" if color == item.color else f"No, {said}"


def _number(scene: Scene, digits: int) -> Answer | None:
    """What stands in a picture with this number of digits."""
    said = f"It is the {'number' if digits == 2 else 'digit'} {''.join(item.kind for item in scene.digits)}."
    return ({}, said) if len(scene.digits) == digits else None


def _place(scene: Scene, rng: random.Random) -> Answer | None:
    item = _lone(scene, rng)
    if item is None or any(abs(at - line) < _CLEAR for at in (item.x, item.y) for line in (1 / 3, 2 / 3)):
        return None
    row, column = _ROWS[int(item.y * 3)], _COLUMNS[int(item.x * 3)]
    place = "center" if (row, column) == ("middle", "center") else f"{row} {column}"
    return {"kind": item.kind}, f"The {item.kind} is at the {place}."


# By the name of the phrasings: how often, and what fills them.
_MAKERS: dict[str, tuple[float, Callable[[Scene, random.Random], Answer | None]]] = {
    "describe": (2, _describe),
    "color of a shape": (3, _color_of),
    "shape of a color": (2, _shape_of),
    "number of shapes": (1.5, lambda scene, _: ({}, _counted(len(scene.shapes), "shape")) if scene.shapes else None),
    "number of a kind": (2, _count_kind),
    "yes or no: there is": (2, _exists),
    "yes or no: color": (2, _is_color),
    "digit": (3, lambda scene, _: _number(scene, 1)),
    "number of two digits": (4, lambda scene, _: _number(scene, 2)),
    "place": (2.5, _place),
    "background": (0.7, lambda scene, _: ({}, f"The background is {scene.background}.")),
}


def questions(scene: Scene, rng: random.Random, count: int) -> list[Exchange]:
    """Different abilities, the weightier ones more often."""
    left = {ability: weight for ability, (weight, _) in _MAKERS.items()}
    found: list[Exchange] = []
    while left and len(found) < count:
        (ability,) = rng.choices(list(left), list(left.values()))
        del left[ability]
        if made := _MAKERS[ability][1](scene, rng):
            slots, answer = made
            found.append((rng.choice(_PICTURES["questions"][ability]).format(**slots), answer))
    return found


def small_talk(rng: random.Random) -> Exchange:
    talk = rng.choice(_PICTURES["small_talk"])
    return varied(rng.choice(talk["said"]), rng), talk["answer"]


def without_picture(rng: random.Random) -> Exchange:
    """A question about a picture that is not attached."""
    ((asked, _),) = questions(random_scene(rng, 1.0), rng, 1)
    return varied(asked, rng), _PICTURES["no_picture"]


def varied(text: str, rng: random.Random) -> str:
    """As people type: without the sign at the end, in lower case, with a word more."""
    chance = rng.random()
    if chance < 0.1:
        return text.rstrip("?.!")
    if chance < 0.2:
        return text.lower()
    if chance < 0.25:
        return text.lower().rstrip("?.!")
    if chance < 0.3:
        return "Please: " + text
    if chance < 0.35 and "color" in text:
        return text.replace("color", "colour")
    return text
