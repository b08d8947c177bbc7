"""OpenAI's client of the scripted server, scripted models of all tool formats, and asynchronous tests' event loop."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI

from genai_server.cli.serve import loaders
from genai_server.text.answers.reasoning import HARMONY, REASONING_FORMATS
from genai_server.text.codec import TextCodec, load_text_codec
from genai_server.text.prompts.chat_template import SCRIPTED_TEMPLATE
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS, Dialect, read_dialect
from tests.running_server import SCRIPTED, RunningServer
from tests.server_here import run_here


@pytest.fixture(scope="module")
def client(scripted: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that leaves nothing out of requests."""
    with run_here(tmp_path_factory.mktemp("strict"), *SCRIPTED, settings={"GENAI_STRICT": "true"}) as server:
        yield server


@pytest.fixture(scope="module")
def served_codec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, TextCodec]]:
    """A scripted server and its text side, whose dialect a test may replace. One start serves all dialects."""
    loaded: list[TextCodec] = []

    def load(*arguments: Any, **fields: Any) -> TextCodec:
        loaded.append(load_text_codec(*arguments, **fields))
        return loaded[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaders, "load_text_codec", load)
        with run_here(tmp_path_factory.mktemp("formats"), "--device", "scripted") as server:
            (codec,) = loaded
            yield server, codec


@pytest.fixture(scope="module")
def server_of(served_codec: tuple[RunningServer, TextCodec]) -> Callable[[str], RunningServer]:
    """Gives a server whose model writes calls in this format, as by GENAI_TOOL_PARSER."""
    server, codec = served_codec

    def choose(form: str) -> RunningServer:
        codec.dialect = read_dialect(SCRIPTED_TEMPLATE, form)
        return server

    return choose


@pytest.fixture(scope="module")
def thinking_server(served_codec: tuple[RunningServer, TextCodec]) -> Callable[[str], RunningServer]:
    """Gives a server whose model writes thoughts in this format, and calls in that which goes with it."""
    server, codec = served_codec

    def choose(form: str) -> RunningServer:
        reasoning = REASONING_FORMATS[form]
        codec.dialect = Dialect(TOOL_FORMATS["harmony" if reasoning is HARMONY else "hermes"], reasoning)
        return server

    return choose
