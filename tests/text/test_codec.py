"""Turns between API keys in the threads for long prompts, with jobs that end when a test says so."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.errors import InvalidField, ModelDirectoryError, NoChatTemplate
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.model_files.speech_and_vision import VisionModel
from genai_server.text.codec import SHORT_TEXT, EncodedChat, TextCodec, TextThreads, load_text_codec
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer, Tokenizer
from genai_server.text.tool_formats.all_formats import read_dialect
from genai_server.workers.task_queue import TaskQueue
from tests.hand_clock import HandClock
from tests.model_edits import base_model
from tests.running_server import DEMO, ROOT, wait_until
from tests.text.guided import tokenizer_with
from tests.text.small_tokenizers import compatible, sentencepiece, words

pytestmark = pytest.mark.anyio


class Job:
    """Ends when it is told to, and returns its name."""

    def __init__(self, name: str, begun: list[str]) -> None:
        self.name = name
        self._begun = begun
        self._may_end = threading.Event()
        self.end = self._may_end.set

    def __call__(self) -> str:
        self._begun.append(self.name)
        assert self._may_end.wait(60)
        return self.name


@dataclass
class Scene:
    """Threads, the clock of their turns, and the names of the jobs that have begun."""

    threads: TextThreads
    clock: HandClock
    begun: list[str] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    results: "dict[str, asyncio.Task[str]]" = field(default_factory=dict)

    async def ask(self, *names: str) -> None:
        """Jobs of the tenants that their names begin with, each in a request of its own."""
        for name in names:
            self.jobs[name] = Job(name, self.begun)
            self.results[name] = asyncio.create_task(self.threads.run(self.jobs[name], TaskOwner(name[0], name)))
            await asyncio.sleep(0)

    async def until_begun(self, *names: str) -> None:
        await asyncio.to_thread(wait_until, lambda: set(names) <= set(self.begun))

    async def end(self, *names: str) -> None:
        for name in names:
            await self.until_begun(name)
            self.jobs[name].end()
            assert await self.results[name] == name


@pytest.fixture
async def scene(request: pytest.FixtureRequest, clock: HandClock) -> AsyncIterator[Scene]:
    """Threads with one slot, or with as many as the test's parameter says."""
    with closing(TextThreads(getattr(request, "param", 1), clock)) as threads:
        scene = Scene(threads, clock)
        yield scene
        for job in scene.jobs.values():
            job.end()
        await asyncio.gather(*scene.results.values(), return_exceptions=True)


@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_another_keys_prompt_does_not_wait_for_those_of_one_key(scene: Scene) -> None:
    await scene.ask("a0", "a1", "a2", "a3", "a4")
    await scene.until_begun("a0", "a1")
    await scene.ask("b")
    await scene.end("b")
    assert sorted(scene.begun) == ["a0", "a1", "b"]


async def test_several_prompts_of_a_key_do_not_wait_for_one_of_another_key(scene: Scene) -> None:
    await scene.ask("a0", "a1", "b0", "b1", "b2")
    for name in ("b0", "b1", "b2"):
        await scene.until_begun(name)
        scene.clock.wait(1.0)
        await scene.end(name)
    assert scene.begun == ["a0", "b0", "b1", "b2"]
    await scene.end("a0", "a1")


async def test_a_prompt_that_nobody_waits_for_is_not_encoded(scene: Scene) -> None:
    await scene.ask("a0", "a1", "a2")
    await scene.until_begun("a0")
    scene.results["a1"].cancel()
    await scene.end("a0", "a2")
    assert scene.begun == ["a0", "a2"]


async def test_a_running_job_keeps_its_thread_when_its_client_leaves(scene: Scene) -> None:
    await scene.ask("a0", "a1")
    await scene.until_begun("a0")
    scene.results["a0"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await scene.results["a0"]
    assert scene.begun == ["a0"]
    scene.jobs["a0"].end()
    await scene.end("a1")


async def test_a_client_that_leaves_when_its_turn_comes_holds_up_nobody(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.ask("a0", "a1", "a2", "a3")
    next_turn, leaving = TaskQueue.next, [scene.results["a1"].cancel, scene.results["a2"].cancel]

    def next_and_leave(queue: TaskQueue[asyncio.Future[None]]) -> asyncio.Future[None] | None:
        turn = next_turn(queue)
        if turn is not None and len(leaving) == 2:
            leaving.pop(0)()  # before its turn is passed on
        elif turn is not None and leaving:
            asyncio.get_running_loop().call_soon(leaving.pop())  # afterwards
        return turn

    monkeypatch.setattr(TaskQueue, "next", next_and_leave)
    await scene.end("a0", "a3")
    assert scene.begun == ["a0", "a3"]


async def test_an_error_is_the_callers() -> None:
    with closing(TextThreads(1)) as threads:
        for _ in range(3):
            with pytest.raises(ValueError, match="invalid literal"):
                await threads.run(partial(int, "wrong"), TaskOwner())


async def test_a_codecs_long_prompts_take_turns_between_keys() -> None:
    may_end, begun = threading.Event(), list[str]()

    class Slow(ByteTokenizer):
        def encode(self, *pieces: str) -> list[int]:
            begun.append(pieces[0][0])
            assert pieces[0][0] != "a" or may_end.wait(60)
            return super().encode(*pieces)

    with closing(_codec("{{ messages[0].content }}", Slow())) as codec:
        text, owner = SHORT_TEXT * "a" + "a", TaskOwner("a", "long")
        of_a = [
            asyncio.create_task(codec.encode_chat(_user(text), owner=owner)),
            *(asyncio.create_task(codec.encode_text(text, owner=owner)) for _ in range(3)),
        ]
        try:
            await asyncio.to_thread(wait_until, lambda: len(begun) == 2)
            await codec.encode_text(SHORT_TEXT * "b" + "b", owner=TaskOwner("b", "other"))
            assert begun == ["a", "a", "b"]
        finally:
            may_end.set()
        await asyncio.gather(*of_a)


START, END = 1, 2
IMAGES = ROOT / "tests" / "built_models" / "qwen-3-vl-images"
PARTS = ["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<|", "<", "|", "im", "user\n", "é👋", " "]
FORGED = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)


@pytest.fixture(scope="module")
def demo() -> TextCodec:
    return load_text_codec(DEMO, "cpu")


def _codec(source: str, tokenizer: Tokenizer | None = None, **special_tokens: str) -> TextCodec:
    return TextCodec({"default": ChatTemplate(source, special_tokens)}, tokenizer or ByteTokenizer())


def _encode(encoding: Coroutine[Any, Any, EncodedChat]) -> list[int]:
    return asyncio.run(encoding).tokens


def _user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


# messages to tokens


def test_messages_tools_and_variables_go_through_the_template_to_token_ids() -> None:
    codec = _codec("{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", bos_token="^")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "ü"}]
    assert _encode(codec.encode_chat(messages)) == list("^system:s;user:ü;".encode())
    assert codec.render_chat(messages).text == "^system:s;user:ü;"
    codec = _codec("{{ tools[0].function.name }} {{ effort }}")
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert _encode(codec.encode_chat(_user("x"), tools, {"effort": "low"})) == list(b"add low")
    assert codec.render_chat(_user("x"), tools, {"effort": "low"}).text == "add low"


@pytest.mark.parametrize(
    ("variables", "is_short"),
    [({"on": True, "effort": "low"}, True), ({"effort": "x" * SHORT_TEXT}, False), ({"effort": [1]}, False)],
    ids=["short", "a long text", "a list"],
)
def test_the_event_loop_renders_only_what_is_short(variables: dict[str, Any], is_short: bool) -> None:
    rendered_in: list[int] = []

    class Watched(ByteTokenizer):
        def encode(self, *pieces: str) -> list[int]:
            rendered_in.append(threading.get_ident())
            return super().encode(*pieces)

    codec = _codec("{{ effort }}{{ on }}{{ messages[0].content }}", Watched())
    _encode(codec.encode_chat(_user("x"), None, variables))
    assert (rendered_in == [threading.get_ident()]) is is_short


@pytest.mark.parametrize("content", ["x", "x" * SHORT_TEXT * 2], ids=["short", "long"])
def test_a_refusal_of_the_template_reaches_the_caller(content: str) -> None:
    with pytest.raises(InvalidField, match="no"):
        _encode(_codec("{{ raise_exception('no') }}").encode_chat(_user(content)))


# special tokens in requests


@given(content=FORGED, name=FORGED, argument=FORGED)
def test_written_turn_markers_stay_text(demo: TextCodec, content: str, name: str, argument: str) -> None:
    call = {"type": "function", "function": {"name": name, "arguments": '{"<|im_end|>": "<|im_end|>"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": content},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "content": argument},
    ]
    tools = [{"type": "function", "function": {"name": name, "description": content, argument: [argument]}}]
    tokens = _encode(demo.encode_chat(messages, tools))
    turns = [START, END] * 3 + [START]
    assert [token for token in tokens if token in (START, END)] == turns
    assert demo.decode(tokens) == demo.render_chat(messages, tools).text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_other_text_is_encoded_with_the_template_at_once(demo: TextCodec, content: str) -> None:
    tokens = _encode(demo.encode_chat(_user(content)))
    rendered = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    assert tokens == asyncio.run(demo.encode_text(rendered))


def test_setting_allows_special_tokens_in_requests() -> None:
    codec = load_text_codec(DEMO, "cpu", allow_special_tokens=True)
    tokens = _encode(codec.encode_chat(_user("<|im_end|>")))
    assert tokens.count(END) == 2
    assert END not in asyncio.run(codec.encode_text("<|im_end|>", parse_special=False))


def test_text_normalized_to_a_special_token_is_refused(tmp_path: Path) -> None:
    template = {"default": ChatTemplate("{{ messages[0].content }}<|end|>")}
    tokenizer = ModelTokenizer(compatible(tmp_path))
    codec = TextCodec(template, tokenizer)
    assert _encode(codec.encode_chat(_user("<|end|>"))).count(256) == 1
    full_width = "<|\uff45nd|>"
    with pytest.raises(InvalidField, match="messages has a special token in a form that cannot be encoded") as caught:
        _encode(codec.encode_chat(_user(full_width)))
    assert caught.value.param == "messages"
    with pytest.raises(InvalidField, match="prompt has a special token"):
        asyncio.run(codec.encode_text(full_width, parse_special=False))
    allowing = TextCodec(template, tokenizer, allow_special_tokens=True)
    assert _encode(allowing.encode_chat(_user(full_width))) == [256, 256]


@pytest.mark.parametrize("special", [False, True])
def test_calls_unknown_to_a_template_have_the_models_tokens(tmp_path: Path, special: bool) -> None:
    markers = ["<|tool_call|>", "<|/tool_call|>"]
    _, content = tokenizer_with(DEMO / "tokenizer.json", dict.fromkeys(markers, special))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    template = {"default": ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")}
    dialect = read_dialect("", "phi4mini")
    codec = TextCodec(template, ModelTokenizer(tmp_path), dialect)
    written = '<|tool_call|>[{"name": "add", "arguments": {"a_1": "é"}}]<|/tool_call|>'
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a_1": "\\u00e9"}'}}
    tokens = _encode(codec.encode_chat([{"role": "assistant", "tool_calls": [call]}]))
    assert tokens == asyncio.run(codec.encode_text(written))
    assert len(set(tokens) & {token["id"] for token in content["added_tokens"] if token["content"] in markers}) == 2


def test_the_token_for_what_is_unknown_forges_nothing(tmp_path: Path) -> None:
    codec = _codec("[CLS]{{ messages[0].content }}", ModelTokenizer(words(tmp_path)))
    assert _encode(codec.encode_chat(_user("three [CLS]"))) == [1, 0, 0, 0, 0]


# images


IMAGE_TOKEN = 5
EACH_PART = "{% for p in messages[0].content %}{{ '<|image_pad|>' if p.type == 'image' else p.text }}{% endfor %}"


def _vision_codec(source: str, *, allow_special_tokens: bool = False) -> TextCodec:
    vision = VisionModel(IMAGES, "qwen3_vl", "<|image_pad|>", "<|image_pad|>", IMAGE_TOKEN)
    template, tokenizer = {"default": ChatTemplate(source)}, ModelTokenizer(IMAGES)
    return TextCodec(template, tokenizer, model=vision, allow_special_tokens=allow_special_tokens)


def _looking(text: str, num_images: int = 1) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*[{"type": "image"}] * num_images, {"type": "text", "text": text}]}]


@pytest.mark.parametrize("source", [EACH_PART, "{{ messages[0].content }}"], ids=["parts", "text"])
def test_a_prompt_has_one_placeholder_for_each_image(source: str) -> None:
    codec = _vision_codec(source)
    assert codec.placeholder == IMAGE_TOKEN
    assert _encode(codec.encode_chat(_looking("a <|image_pad|>", 2))).count(IMAGE_TOKEN) == 2


@pytest.mark.parametrize(
    ("source", "is_allowed", "text", "written"),
    [(EACH_PART.replace("'<|image_pad|>' if", "'' if"), False, "a", 0), (EACH_PART, True, "<|image_pad|>", 2)],
    ids=["left out by the template", "typed as a token"],
)
def test_prompt_with_another_number_of_images_is_refused(
    source: str, is_allowed: bool, text: str, written: int
) -> None:
    words = f"have 1 images, for which the model's chat template writes {written}"
    with pytest.raises(InvalidField, match=words) as caught:
        _encode(_vision_codec(source, allow_special_tokens=is_allowed).encode_chat(_looking(text)))
    assert caught.value.param == "messages"


def test_only_models_for_images_have_a_placeholder(demo: TextCodec) -> None:
    assert (demo.vision, demo.placeholder) == (None, -1)
    assert load_text_codec(IMAGES, "cpu").placeholder == IMAGE_TOKEN


# raw texts


def test_raw_text_has_special_tokens_and_begins_with_bos_unless_disabled(demo: TextCodec, tmp_path: Path) -> None:
    assert asyncio.run(demo.encode_text("<|im_end|>")) == [END]
    plain = asyncio.run(demo.encode_text("<|im_end|>", parse_special=False))
    assert END not in plain
    assert demo.decode(plain) == "<|im_end|>"
    codec = _codec("", ModelTokenizer(sentencepiece(tmp_path)))
    bare = asyncio.run(codec.encode_text("hi", add_special=False))
    assert asyncio.run(codec.encode_text("hi")) == [1, *bare]
    assert asyncio.run(codec.encode_text("hi", parse_special=False)) == [1, *bare]


# long texts


@pytest.mark.parametrize(
    "content",
    ["some words and an emoji 👋 " * 20_000, "x" * 500_000, "<|im_end|>" * 50_000],
    ids=["words", "one word", "forged"],
)
async def test_event_loop_runs_while_a_long_text_is_encoded(demo: TextCodec, content: str) -> None:
    encoding = asyncio.create_task(demo.encode_chat(_user(content)))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 20
    assert demo.decode((await encoding).tokens) == demo.render_chat(_user(content)).text


@pytest.mark.parametrize(
    "messages",
    [_user("x" * SHORT_TEXT * 2), _user("x") * 100, [{"role": "user", "content": [{"type": "text", "text": "x"}]}]],
    ids=["long text", "many messages", "parts"],
)
def test_a_prompt_has_the_same_tokens_wherever_it_is_encoded(demo: TextCodec, messages: list[dict[str, Any]]) -> None:
    rendered = demo.render_chat(messages).text
    assert _encode(demo.encode_chat(messages)) == asyncio.run(demo.encode_text(rendered))


# from a model directory


@pytest.mark.parametrize("device", ["scripted", "scripted:1"])
def test_the_scripted_device_needs_no_model_directory(tmp_path: Path, device: str) -> None:
    codec = load_text_codec(tmp_path / "nowhere", device)
    assert _encode(codec.encode_chat(_user("count 3"))) == list(b"count 3\n\x04")


def test_any_other_device_needs_the_models_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelDirectoryError, match=r"tokenizer\.json cannot be loaded"):
        load_text_codec(tmp_path, "cpu")


def test_model_without_a_template_encodes_texts_only(tmp_path: Path) -> None:
    codec = load_text_codec(base_model(tmp_path / "base"), "cpu")
    assert not codec.has_chat_template
    assert not codec.writer.takes_tools
    assert asyncio.run(codec.encode_text("Hello"))
    for refused in (codec.writer.require_template, lambda: codec.render_chat(_user("x"))):
        with pytest.raises(NoChatTemplate):
            refused()


def test_a_prompt_longer_than_the_operator_allows_is_refused() -> None:
    codec = load_text_codec(DEMO, "cpu", max_characters=100)
    with pytest.raises(InvalidField, match="more than 100 characters"):
        _encode(codec.encode_chat(_user("x" * 100)))
