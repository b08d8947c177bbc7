"""Models that take images behind the API: answers are the library's, alone and in company, in the batch and without."""

import json
import random
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
import pytest
from tokenizers import Tokenizer

from tests.media.images.pictures import data_url, tiles
from tests.running_server import RunningServer, run_server, wait_until

BUILT = Path(__file__).parent / "built_models"
# Types of models that have the graphs of another type.
ALSO = {"fara-images": ("qwen-2.5-vl-images", "fara")}
NUM_TOKENS, NUM_REQUESTS, NUM_CLIENTS = 12, 60, 8
# An image's size and seed, or a text.
Part = tuple[int, int, int] | str
# Contents of one message.
CONTENTS: list[list[Part]] = [
    ["what is in ", (96, 64, 1), "?"],
    ["no image at all"],
    ["two: ", (64, 64, 2), " and ", (160, 96, 3)],
    [(120, 200, 4)],
]
NUM_IMAGES = len({part for content in CONTENTS for part in content if not isinstance(part, str)})


class Served:
    """A server with one model."""

    def __init__(self, server: RunningServer, path: Path) -> None:
        self.server, self.path = server, path
        self.tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        config = json.loads((path / "genai_config.json").read_text())["model"]
        self.image_token, self.context = config["image_token_id"], config["context_length"]

    def ask(self, content: list[Part], **fields: Any) -> dict[str, Any]:
        """The response to a greedy request for `NUM_TOKENS`."""
        response = self.server.client.post("/v1/chat/completions", json=body_of(content) | fields)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def answer(self, content: list[Part], **fields: Any) -> str:
        return str(self.ask(content, **fields)["choices"][0]["message"]["content"])

    def encoded(self) -> float:
        """How many images the engine has encoded."""
        metrics = self.server.client.get("/metrics").text
        (value,) = re.findall(r"^genai:images_encoded_total\{.*\} (\S+)$", metrics, re.MULTILINE)
        return float(value)


def body_of(content: list[Part]) -> dict[str, Any]:
    messages = [{"role": "user", "content": [part_of(part) for part in content]}]
    return {"messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}


def part_of(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": data_url(tiles(*part))}}


def by_library(served: Served, content: list[Part]) -> str:
    """The text of the library's own answer, from its image processor to its generator."""
    body = {"messages": body_of(content)["messages"]}
    prompt = served.server.client.post("/apply-template", json=body).json()["prompt"]
    model = og.Model(str(served.path))
    processor, parameters = model.create_multimodal_processor(), og.GeneratorParams(model)
    images = [tiles(*part) for part in content if not isinstance(part, str)]
    parameters.set_search_options(max_length=served.context, do_sample=False, batch_size=1)
    generator = og.Generator(model, parameters)
    if images:
        generator.set_inputs(processor(prompt, images=og.Images.open_bytes(*images)))
    else:
        generator.append_tokens(np.array(served.tokenizer.encode(prompt).ids, np.int32))
    tokens: list[int] = []
    while len(tokens) < NUM_TOKENS:
        logits = np.array(generator.get_logits())
        logits = logits.reshape(-1, logits.shape[-1])[-1]
        logits[served.image_token] = -np.inf  # the library fails once it has chosen one
        tokens.append(int(logits.argmax()))
        generator.append_tokens(np.array(tokens[-1:], np.int32))
    return str(served.tokenizer.decode(tokens))


@pytest.fixture(
    scope="module",
    params=[
        ("qwen-3-vl-images", "batched"),
        *(
            pytest.param(param, marks=pytest.mark.slow)
            for param in [
                ("qwen-3-vl-images", "generator"),
                ("qwen-2.5-vl-images", "batched"),
                ("fara-images", "batched"),
                ("qwen-3.5-images", "batched"),
                ("qwen-3.5-moe-images", "batched"),
                ("gemma-3-images", "batched"),
                ("mistral-3-images", "batched"),
                ("lfm2-vl-images", "batched"),
            ]
        ),
    ],
    ids="-".join,
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    name, scheduler = request.param
    settings = {
        "GENAI_MAX_QUEUE": str(NUM_REQUESTS),
        "GENAI_SCHEDULER": scheduler,
        "GENAI_SPECULATION": "off",
        "GENAI_ENCODER_WEIGHTS": "own",  # as the library computes
    }
    folder = tmp_path_factory.mktemp(name)
    path = renamed(*ALSO[name], folder / name) if name in ALSO else BUILT / name
    with run_server(folder, "--model-dir", str(path), settings=settings) as server:
        assert server.device("cpu")["batching"]["scheduler"] == scheduler
        yield Served(server, path)


def renamed(name: str, type: str, path: Path) -> Path:
    """A copy of a built model under another type."""
    shutil.copytree(BUILT / name, path)
    config = json.loads((path / "genai_config.json").read_text())
    config["model"]["type"] = type
    (path / "genai_config.json").write_text(json.dumps(config))
    return path


def test_answers_are_those_of_the_library(served: Served) -> None:
    found = [served.answer(content) for content in CONTENTS]
    assert len(set(found)) == len(found)
    for content, answer in zip(CONTENTS, found, strict=True):
        # The library cannot read text alone where features are grouped by image, as in Gemma 3.
        if served.path.name != "gemma-3-images" or any(not isinstance(part, str) for part in content):
            # An incomplete character at the end may be one mark or several.
            assert answer.rstrip("\ufffd") == by_library(served, content).rstrip("\ufffd")


def test_answers_in_company_are_those_given_alone(served: Served) -> None:
    alone = [served.answer(content) for content in CONTENTS]

    def ask(number: int) -> None:
        index = random.Random(number).randrange(len(CONTENTS))
        assert served.answer(CONTENTS[index], cache_prompt=bool(number % 2)) == alone[index]

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        list(clients.map(ask, range(NUM_REQUESTS)))


def test_an_image_is_encoded_once(served: Served) -> None:
    for more in ("and then", "again", "once more"):
        for content in CONTENTS:
            served.answer([*content, more])
    wait_until(lambda: served.encoded() >= NUM_IMAGES)
    # Another test may have asked for one more.
    assert served.encoded() <= NUM_IMAGES + 1


def test_image_tokens_count_as_prompt_tokens(served: Served) -> None:
    text: list[Part] = ["so"]
    image: list[Part] = ["so", (128, 64, 5)]
    more = served.ask(image)["usage"]["prompt_tokens"] - served.ask(text)["usage"]["prompt_tokens"]
    body = {"messages": body_of(image)["messages"]}
    rendered = served.server.client.post("/v1/chat/completions/render", json=body).json()["token_ids"]
    tokenized = served.server.client.post("/tokenize", json=body).json()["tokens"]
    assert rendered == tokenized
    assert len(rendered) == served.ask(image)["usage"]["prompt_tokens"]
    assert more >= rendered.count(served.image_token) > 0


def test_several_answers_share_an_image(served: Served) -> None:
    content = CONTENTS[0]
    choices = served.ask(content, n=3)["choices"]
    assert {choice["message"]["content"] for choice in choices} == {served.answer(content)}
