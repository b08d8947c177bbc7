"""Simple drawings: shapes and digits of a few colors on a plain background."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from .tables import table

Rgb = tuple[int, int, int]
SHAPES = ("circle", "square", "triangle", "star")
# How many corners, the angle of the first one, and how far from it a turned shape may begin.
_CORNERS = {"square": (4, 45.0, 15), "triangle": (3, -90.0, 180), "star": (10, -90.0, 36)}
DIGITS = tuple("0123456789")
COLORS: dict[str, list[Rgb]] = {
    name: [(red, green, blue) for red, green, blue in shades] for name, shades in table("pictures")["colors"].items()
}
_BACKGROUNDS = ("white",) * 10 + ("black", "gray") * 2 + ("yellow", "blue", "green", "red", "orange", "purple")
_SMOOTH = 3  # pictures are drawn at this many times their size, or with jagged edges


@dataclass(frozen=True)
class Item:
    """A shape or a digit; place and radius are shares of the picture's width, height and shorter side."""

    kind: str
    color: str
    x: float
    y: float
    radius: float

    @property
    def is_digit(self) -> bool:
        return self.kind in DIGITS


@dataclass(frozen=True)
class Scene:
    """What a picture shows, from left to right."""

    background: str
    items: tuple[Item, ...]

    @property
    def shapes(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if not item.is_digit)

    @property
    def digits(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.is_digit)


def random_scene(rng: random.Random, ratio: float) -> Scene:
    """One to six shapes, one or two digits, or a digit among shapes; `ratio` is width by height."""
    background = rng.choice(_BACKGROUNDS)
    colors = [color for color in COLORS if color not in (background, "gray")]
    if background == "gray":
        colors = [color for color in colors if color != "white"]
    chance = rng.random()
    if chance < 0.62:
        kinds = [rng.choice(SHAPES) for _ in range(rng.randint(1, 6))]
    elif chance < 0.78:
        kinds = [rng.choice(DIGITS)]
    elif chance < 0.88:
        return _number(rng, background, rng.choice(colors), ratio)
    else:
        kinds = [rng.choice(DIGITS), *(rng.choice(SHAPES) for _ in range(rng.randint(1, 3)))]
    # Two colors only make several shapes of one color, and several colors of one kind.
    if rng.random() < 0.3:
        colors = rng.sample(colors, 2)
    if len(kinds) > 2 and rng.random() < 0.25:
        few = rng.sample(SHAPES, 2)
        kinds = [kind if kind in DIGITS else rng.choice(few) for kind in kinds]
    return Scene(background, _placed(rng, kinds, colors, ratio))


def _placed(rng: random.Random, kinds: list[str], colors: list[str], ratio: float) -> tuple[Item, ...]:
    """Places that do not touch each other."""
    wide, high = max(1.0, ratio), max(1.0, 1 / ratio)  # in shorter sides
    largest = min(0.42, 0.5 * (wide * high / len(kinds)) ** 0.5 * 0.75)
    while True:
        items: list[Item] = []
        for kind in kinds:
            for _ in range(30):
                radius = rng.uniform(0.11 if kind in SHAPES else 0.16, max(0.17, largest))
                x, y = rng.uniform(radius, wide - radius), rng.uniform(radius, high - radius)
                if all(math.hypot(x - o.x * wide, y - o.y * high) > radius + o.radius + 0.02 for o in items):
                    items.append(Item(kind, rng.choice(colors), x / wide, y / high, radius))
                    break
        if len(items) == len(kinds):
            return tuple(sorted(items, key=lambda item: item.x))
        largest *= 0.93


def _number(rng: random.Random, background: str, color: str, ratio: float) -> Scene:
    """Two digits side by side."""
    wide, high = max(1.0, ratio), max(1.0, 1 / ratio)
    radius = rng.uniform(0.17, min(0.35, wide / 4))
    gap = rng.uniform(1.05, 1.35) * radius
    x = rng.uniform(radius, wide - radius - gap)
    y = rng.uniform(radius, high - radius)
    first, second = rng.choice("123456789"), rng.choice(DIGITS)
    places = ((first, x), (second, x + gap))
    return Scene(background, tuple(Item(kind, color, at / wide, y / high, radius) for kind, at in places))


def draw(scene: Scene, width: int, height: int, rng: random.Random) -> Image.Image:
    """The picture in RGB, with smooth or jagged edges, exact or slightly other colors."""
    scale = 1 if rng.random() < 0.25 else _SMOOTH
    side = min(width, height) * scale
    picture = Image.new("RGB", (width * scale, height * scale), _shade(scene.background, rng))
    tilt, slant, stretch = rng.uniform(-12, 12), rng.uniform(-0.2, 0.2), rng.uniform(0.75, 1.2)
    bold = rng.uniform(0.0, 0.08)
    for item in scene.items:
        center = (item.x * width * scale, item.y * height * scale)
        radius = item.radius * side
        color = _shade(item.color, rng)
        if item.is_digit:
            mask = _digit(item.kind, radius, bold, stretch, slant, tilt)
            corner = (round(center[0] - mask.width / 2), round(center[1] - mask.height / 2))
            picture.paste(color, corner, mask)
        else:
            _shape(ImageDraw.Draw(picture), item.kind, center, radius, color, rng)
    return picture if scale == 1 else picture.resize((width, height), Image.Resampling.BOX)


def _shade(color: str, rng: random.Random) -> Rgb:
    red, green, blue = COLORS[color][0] if rng.random() < 0.4 else rng.choice(COLORS[color])
    if rng.random() < 0.5:
        return red, green, blue
    return _near(red, rng), _near(green, rng), _near(blue, rng)


def _near(value: int, rng: random.Random) -> int:
    return max(0, min(255, value + rng.randint(-15, 15)))


def _shape(
    canvas: ImageDraw.ImageDraw, kind: str, at: tuple[float, float], radius: float, color: Rgb, rng: random.Random
) -> None:
    x, y = at
    if kind == "circle":
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
        return
    count, turn, swing = _CORNERS[kind]
    turn += rng.uniform(-swing, swing) if rng.random() < 0.3 else 0
    inner = rng.uniform(0.38, 0.5) if kind == "star" else 1.0
    points = []
    for corner in range(count):
        angle, far = math.radians(turn + 360 // count * corner), radius * (inner if corner % 2 else 1.0)
        points.append((x + far * math.cos(angle), y + far * math.sin(angle)))
    canvas.polygon(points, fill=color)


def _digit(kind: str, radius: float, bold: float, stretch: float, slant: float, tilt: float) -> Image.Image:
    """A mask of a digit about twice the radius high."""
    font = ImageFont.load_default(2.2 * radius)
    side = round(2.9 * radius)
    mask = Image.new("L", (side, side))
    stroke = round(bold * radius)
    ImageDraw.Draw(mask).text((side / 2, side / 2), kind, fill=255, font=font, anchor="mm", stroke_width=stroke)
    middle = side / 2
    # From a place in the result to one in the text: stretched and slanted around the middle.
    columns = (1 / stretch, slant, middle - middle / stretch - slant * middle)
    mask = mask.transform((side, side), Image.Transform.AFFINE, (*columns, 0, 1, 0), Image.Resampling.BILINEAR)
    return mask.rotate(tilt, Image.Resampling.BILINEAR)
