"""Converts the messages and texts of requests to token ids, and token ids to text, for one model.

`load_text_codec` loads a model's tokenizer and chat templates as a `TextCodec`. `TextThreads` runs slow conversions in
threads, in which API keys take turns.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from genai_server.config.environment import limit_tokenizer_threads
from genai_server.errors import InvalidField
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.model_files.config_files import read_object
from genai_server.model_files.pooling_model import PoolingModel, Task, read_pooling_model
from genai_server.model_files.speech_and_vision import SpeechModel, VisionModel, read_speech_model, read_vision_model
from genai_server.options.providers import is_scripted
from genai_server.text.grammars.grammar import find_opaque_tokens
from genai_server.text.pooled_texts import PooledTexts
from genai_server.text.prompts.chat_template import (
    DEFAULT,
    MAX_CHARACTERS,
    SCRIPTED_TEMPLATE,
    ChatTemplate,
    Tool,
    load_chat_templates,
    load_rerank_template,
    load_special_tokens,
)
from genai_server.text.prompts.conversation import Message, num_media
from genai_server.text.prompts.prompt import PromptWriter, WrittenPrompt
from genai_server.text.prompts.special_tokens import Prompt, SpecialTokenGuard, as_field_errors
from genai_server.text.tokenizer import FILE, ByteTokenizer, ModelTokenizer, Tokenizer
from genai_server.text.tool_formats.all_formats import AUTOMATIC, PLAIN, Dialect, read_dialect
from genai_server.workers.task_queue import TaskQueue

T = TypeVar("T")


class TextThreads:
    """Runs up to `slots` jobs at a time in threads, so that long texts do not block the event loop. Tenants (API keys)
    take turns: one without running jobs need not wait for the jobs of others.

    For use in the event loop only. TextCodec creates it and closes it. `clock` returns the time in seconds.
    """

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        # No job is ended before it is done.
        self._queue = TaskQueue[asyncio.Future[None]](slots, clock, grace=math.inf)
        # The queue may run one job beyond its slots.
        self._threads = ThreadPoolExecutor(slots + 1, "text")

    async def run(self, job: Callable[[], T], owner: TaskOwner) -> T:
        """Run the function `job` in a thread when the turn of its owner (the API key of the request) comes, and return
        its result.

        Raises whatever `job` raises. If the caller is cancelled, a job that has begun still runs to its end.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._queue.add(turn, owner)
        self._begin_next()
        try:
            await turn
            running = self._threads.submit(job)
        except BaseException:
            if not self._queue.abandon(turn, owner):  # its turn has come in the meantime
                self._end(turn)
            raise
        # A job that nobody waits for any more occupies its thread to its end, unless it has not begun.
        running.add_done_callback(lambda _: _call_soon(loop, partial(self._end, turn)))
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Stop the threads without waiting for running jobs. Waiting jobs are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin_next(self) -> None:
        while (turn := self._queue.next()) is not None:
            if not turn.cancelled():  # otherwise `run` ends it
                turn.set_result(None)

    def _end(self, turn: "asyncio.Future[None]") -> None:
        self._queue.finish(turn)
        self._begin_next()


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call)


# Prompts up to this number of characters and messages are rendered and encoded in a few milliseconds.
SHORT_TEXT = 8_000
FEW_MESSAGES = 50
# Number of longer prompts processed at a time; others wait.
_THREADS = 2
_SLICE = 20_000

# Of requests whose API key is of no interest.
_NO_OWNER = TaskOwner()


class EncodedChat(NamedTuple):
    """The prompt of a chat, ready for the engine.

    `tokens` are its token ids. `written` is the rendered text, with notes on the parts of the conversation that were
    rewritten or omitted because the chat template does not support them.
    """

    tokens: list[int]
    written: WrittenPrompt


class TextCodec:
    """Converts between text and tokens for one model on one device: it has the model's tokenizer and, if there are any,
    its chat templates. `load_text_codec` creates it. For use in the event loop only. The caller must close it.

    Messages and tools are objects in OpenAI's format; the content of a message is a string, a list of parts of type
    text or image, or None. Long prompts are encoded in threads, in which API keys take turns; therefore methods have
    the parameter `owner`, the API key of the request.

    Its attributes describe the model: `dialect` has the formats of reasoning and tool calls, `opaque_tokens` the ids of
    tokens that grammars must name by id, `named_tokens` the special tokens by role, such as `eos_token`; `vision`,
    `speech` and `pooling` describe a vision, transcription, and embedding or reranking model, and are None for others.
    """

    def __init__(
        self,
        templates: Mapping[str, ChatTemplate],
        tokenizer: Tokenizer,
        dialect: Dialect = PLAIN,
        *,
        opaque_tokens: Mapping[str, int] = {},
        named_tokens: Mapping[str, str] = {},
        allow_special_tokens: bool = False,
        model: PoolingModel | VisionModel | SpeechModel | None = None,
    ) -> None:
        # Describes a model that transcribes; None for others.
        self.speech = model if isinstance(model, SpeechModel) else None
        # Describes an embedding or reranking model; None for others.
        self.pooling = pooling = model if isinstance(model, PoolingModel) else None
        # How the model writes reasoning and tool calls.
        self.dialect = dialect
        # Ids, keyed by text, of the tokens that a grammar must refer to by id.
        self.opaque_tokens = opaque_tokens
        # The texts of special tokens, keyed by role, such as `eos_token`.
        self.named_tokens = named_tokens
        self.tokenizer = tokenizer
        # Whether special tokens in messages and tools are encoded as such instead of as plain text.
        self._allow_special_tokens = allow_special_tokens
        special_tokens = () if allow_special_tokens else tokenizer.special_tokens
        # Describes how the model takes images; None for a model that reads text only.
        self.vision = vision = model if isinstance(model, VisionModel) else None
        marker = "" if vision is None else vision.marker
        self.writer = PromptWriter(templates, special_tokens, dialect.tool_format, marker)
        self._guard = SpecialTokenGuard(tokenizer.special_tokens)
        # Excludes the token for unknown text, which has no structural meaning.
        self._structural = frozenset(tokenizer.special_tokens.values()) - tokenizer.unknown
        self._pooled_texts = None if pooling is None else PooledTexts(tokenizer, self.writer, pooling)
        self._threads = TextThreads(_THREADS)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        owner: TaskOwner = _NO_OWNER,
    ) -> EncodedChat:
        """Render the messages of a chat with the model's chat template, and return the prompt as text and token ids.

        `template_kwargs` are additional variables for the template. Two of them have a meaning of their own: if
        `add_generation_prompt` is false, the prompt ends after the last message, and if `continue_final_message` is
        true, it ends inside the last message, which the answer continues. `owner` is the API key of the request. Raises
        InvalidField, which names the field, if the prompt cannot be rendered, and NoChatTemplate if the model has no
        chat template.
        """

        def encode() -> EncodedChat:
            written = self.writer.write(messages, tools, template_kwargs)
            tokens = self._encode(written.prompt, "messages", check=not self._allow_special_tokens)
            self._check_images(messages, tokens)
            return EncodedChat(tokens, written)

        is_short = not tools and _are_short([*messages, template_kwargs or {}])
        return await self._run(encode, owner, is_short=is_short)

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> WrittenPrompt:
        """Render the messages of a chat with the model's chat template, and return the prompt as text, without encoding
        it.

        `template_kwargs` are additional variables for the template. Raises InvalidField, which names the field, if the
        prompt cannot be rendered, and NoChatTemplate if the model has no chat template.
        """
        return self.writer.write(messages, tools, template_kwargs)

    def encode_ends(self, written: Sequence[WrittenPrompt]) -> list[list[int]]:
        """Encode only the ends of several prompts, for prompts that begin alike: what follows the lines that all have
        in common.

        `written` are the rendered prompts. Returns the token ids of each end, in the order of the prompts. Slow for
        many prompts, so it should be called in a thread. Raises InvalidField if a text cannot be encoded.
        """
        position = _end_of_common_lines([rendered.text for rendered in written])
        ends = [self._guard.end(rendered.prompt, position) for rendered in written]
        return [self._encode(end, "messages", check=not self._allow_special_tokens) for end in ends]

    async def encode_text(
        self,
        text: str,
        add_special: bool = True,
        *,
        parse_special: bool = True,
        param: str = "prompt",
        owner: TaskOwner = _NO_OWNER,
    ) -> list[int]:
        """Return the token ids of a raw text.

        `add_special` adds the tokenizer's special tokens around the text, such as the beginning-of-sequence token.
        Without `parse_special`, special tokens in the text are encoded as plain text. `param` is the field of the
        request that errors name, and `owner` the request's API key. Raises InvalidField if the text is not valid
        Unicode.
        """
        with as_field_errors(param):
            text.encode()

        def encode() -> list[int]:
            prompt = Prompt([text], 0) if parse_special else self._guard.plain(text)
            return self._encode(prompt, param, check=not parse_special, add_special=add_special)

        return await self._run(encode, owner, is_short=len(text) <= SHORT_TEXT)

    def decode(self, tokens: Sequence[int], *, param: str = "tokens") -> str:
        """Return the text of token ids, including the texts of special tokens. Invalid UTF-8 becomes U+FFFD.

        Raises InvalidField, naming the field `param`, for an id that the tokenizer does not have.
        """
        unknown = next((n for n, token in enumerate(tokens) if not self.tokenizer.has_token(token)), None)
        if unknown is not None:
            raise InvalidField(
                param,
                f"must have tokens of this model, which has {self.tokenizer.vocab_size}",
                given=tokens[unknown],
            )
        return self.tokenizer.decode(tokens)

    async def encode_pooled(self, encode: Callable[[PooledTexts], T], owner: TaskOwner = _NO_OWNER) -> T:
        """Run the function `encode` in a thread and return its result. It encodes texts for embedding or reranking with
        the PooledTexts that it receives.

        `owner` is the API key of the request. May only be called for embedding and reranking models. Raises whatever
        `encode` raises.
        """
        assert self._pooled_texts is not None
        texts = self._pooled_texts
        return await self._run(lambda: encode(texts), owner, is_short=False)

    @property
    def placeholder(self) -> int:
        """The id of the token that stands for an image or audio clip in a prompt from `encode_chat`.

        It is -1 if the model takes neither images nor audio.
        """
        return -1 if self.vision is None else self.tokenizer.special_tokens.get(self.vision.placeholder, -1)

    @property
    def task(self) -> Task:
        """What the model does: generate answers, transcribe, embed or rerank."""
        if self.speech is not None:
            return Task.TRANSCRIBE
        return Task.GENERATE if self.pooling is None else self.pooling.task

    @property
    def has_chat_template(self) -> bool:
        """Whether the model accepts chats (messages). If not, it accepts at most raw prompts."""
        return self.task is Task.GENERATE and self.writer.has_template

    def close(self) -> None:
        """Stop the threads. Waiting jobs are cancelled, and running jobs are not waited for."""
        self._threads.close()

    def _check_images(self, messages: Sequence[Message], tokens: list[int]) -> None:
        """Check that the prompt has one placeholder for each image or audio clip in the messages.

        `tokens` are the token ids of the prompt. Raises InvalidField if the chat template has written more or fewer.
        """
        if self.vision is None:
            return
        num_given = num_media(messages)
        num_written = tokens.count(self.placeholder)
        if num_written != num_given:
            noun = f"{self.vision.medium}s"
            raise InvalidField(
                "messages", f"have {num_given} {noun}, for which the model's chat template writes {num_written}"
            )

    def _encode(self, prompt: Prompt, param: str, *, check: bool, add_special: bool = False) -> list[int]:
        tokens = self.tokenizer.encode(*prompt.pieces)
        # A tokenizer may normalize other text, such as full-width letters, to a special token.
        if check and _num_in(self._structural, tokens) > prompt.num_special:
            raise InvalidField(param, "has a special token in a form that cannot be encoded as text")
        return self.tokenizer.framed(tokens) if add_special else tokens

    async def _run(self, job: Callable[[], T], owner: TaskOwner, *, is_short: bool) -> T:
        """Run the function `job` and return its result: a short job at once, and any other in a thread, so that it does
        not block the event loop.
        """
        if is_short:
            return job()
        return await self._threads.run(job, owner)


def load_text_codec(
    model_dir: Path,
    device: str,
    *,
    chat_template: str = "",
    tool_parser: str = AUTOMATIC,
    allow_special_tokens: bool = False,
    max_characters: int = MAX_CHARACTERS,
) -> TextCodec:
    """Load the tokenizer and the chat templates of the model in the folder `model_dir`, which runs on `device`.

    `chat_template` is a file or the name of a template that the server includes; it replaces the model's own template.
    Devices of the kind `scripted`, which write prepared answers instead of running a model, have a tokenizer and
    template of their own. `tool_parser` is the name of the format in which the model writes tool calls; "auto" detects
    it. With `allow_special_tokens`, special tokens in the texts of a chat are encoded as special tokens instead of as
    plain text. Rendered prompts may have at most `max_characters`.

    Raises ModelDirectoryError if a file of the model cannot be used, ChatTemplateError if the file or name
    `chat_template` cannot be used, and ConfigurationError for an unknown tool call format.
    """
    scripted = is_scripted(device)
    limit_tokenizer_threads()
    if (speech := read_speech_model(model_dir)) is not None:
        return TextCodec({}, ModelTokenizer(model_dir), model=speech)
    tokenizer = ByteTokenizer() if scripted else ModelTokenizer(model_dir)
    named_tokens = {} if scripted else load_special_tokens(model_dir)
    pooling = read_pooling_model(model_dir)
    if pooling is not None:
        templates = {} if pooling.true_token is None else load_rerank_template(model_dir, max_characters=max_characters)
        return TextCodec(templates, tokenizer, named_tokens=named_tokens, model=pooling)
    opaque_tokens: Mapping[str, int] = {}
    if scripted:
        templates = {DEFAULT: ChatTemplate(SCRIPTED_TEMPLATE, max_characters=max_characters)}
    else:
        templates = load_chat_templates(model_dir, chat_template, max_characters=max_characters)
        opaque_tokens = find_opaque_tokens(read_object(model_dir / FILE))
    dialect = read_dialect("\n".join(template.source for template in templates.values()), tool_parser)
    codec = TextCodec(
        templates,
        tokenizer,
        dialect,
        opaque_tokens=opaque_tokens,
        named_tokens=named_tokens,
        allow_special_tokens=allow_special_tokens,
        model=None if scripted else read_vision_model(model_dir),
    )
    codec.writer.prepare()
    return codec


def _end_of_common_lines(texts: Sequence[str]) -> int:
    """Return the position, in characters, after the lines with which all texts begin; 0 if they have no line in common.

    At this position no text has whitespace, because whitespace may be encoded together with the text before it.
    """
    position = len(commonprefix(texts))
    while (position := texts[0].rfind("\n", 0, position) + 1) > 0:
        if all(text[position : position + 1].strip() for text in texts):
            return position
        position -= 1
    return 0


def _num_in(ids: Set[int], tokens: list[int]) -> int:
    """Return how many of the tokens are in `ids`. The tokens are counted in slices, so that other threads can run in
    between.
    """
    slices = (tokens[start : start + _SLICE] for start in range(0, len(tokens), _SLICE))
    return sum(sum(map(ids.__contains__, part)) for part in slices)


def _are_short(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether messages are so few and short that they are rendered and encoded in a few milliseconds, without a thread.

    This requires that the values of their fields are strings or booleans.
    """
    values = [value for message in messages[:FEW_MESSAGES] for value in message.values() if value is not None]
    return (
        len(messages) <= FEW_MESSAGES
        and all(isinstance(value, str | bool) for value in values)
        and sum(len(value) for value in values if isinstance(value, str)) <= SHORT_TEXT
    )
