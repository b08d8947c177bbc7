"""The complete server with the demo model for images: pictures in, answers about them out."""

from typing import Any

import pytest
from PIL import Image, ImageDraw

from tests.media.images.pictures import data_url, encoded
from tests.running_server import ROOT, RunningServer
from tests.server_here import module_server

MODEL = ROOT / "models" / "demo-vision"
Message = dict[str, Any]


server = module_server("--model-dir", str(MODEL), "--model-name", "demo-vision")


def circle(color: str, **drawn: int) -> str:
    """A circle on white, and `drawn` further squares in purple, as a data URL."""
    image = Image.new("RGB", (320, 240), "white")
    canvas = ImageDraw.Draw(image)
    canvas.ellipse((100, 60, 220, 180), fill=color)
    for number in range(drawn.get("squares", 0)):
        canvas.rectangle((20 + 230 * number, 20, 70 + 230 * number, 70), fill="purple")
    return data_url(encoded(image))


def message(text: str, *images: str) -> Message:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def ask(server: RunningServer, *messages: Message) -> str:
    response = server.client.post("/v1/chat/completions", json={"model": "demo-vision", "messages": messages})
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("color", ["red", "blue", "yellow"])
def test_it_sees_the_color_of_a_shape(server: RunningServer, color: str) -> None:
    assert ask(server, message("What color is the circle?", circle(color))) == f"The circle is {color}."


def test_it_counts_what_it_sees_and_asks_for_a_picture(server: RunningServer) -> None:
    assert ask(server, message("How many shapes are there?", circle("red", squares=2))) == "There are 3 shapes."
    assert "picture" in ask(server, {"role": "user", "content": "What color is the circle?"})


def test_the_newest_picture_is_the_one_asked_about(server: RunningServer) -> None:
    first = message("What color is the circle?", circle("red"))
    said = {"role": "assistant", "content": "The circle is red."}
    assert ask(server, first, said, message("What color is the circle?", circle("blue"))) == "The circle is blue."
