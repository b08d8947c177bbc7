"""Renders a request's prompts with the chat template and encodes them to token ids, with their images and audio
(`encode_prompts`); encodes prompts that share a beginning (`encode_alike`); and keeps the text of prompts that the
answers are to repeat (`echoed_prompts`, for the field `echo`).

A completion with a suffix becomes a fill-in-the-middle prompt of the tokens that code models were trained on
(`with_suffix`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from msgspec import structs

from genai_server.answer_parts import ScoredToken
from genai_server.errors import InvalidField, quoted
from genai_server.generation.dependencies import RequestContext, Services
from genai_server.generation.output_spec import listed_tools
from genai_server.generation.parameters.chat_messages import AnyTool, ChatMessage, ChatParameters, tool_for_template
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.http.leniency import Leniency
from genai_server.media.audio.recordings import require_decoder
from genai_server.media.images.image_files import PreparedImage
from genai_server.media.images.reader import ImageSource
from genai_server.messages.generation_request import Image, ModelInfo
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.model_files.speech_and_vision import Medium, VisionModel
from genai_server.text.codec import FEW_MESSAGES, TextCodec
from genai_server.text.prompts.template_traits import THINKING_NAMES

_PART_TYPES = {Medium.IMAGE: "image", Medium.AUDIO: "audio"}
_NOUNS = {Medium.IMAGE: "an image", Medium.AUDIO: "a sound"}


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt that is returned at the beginning of its answers, because the request has `echo`: its text and its
    tokens. `echoed_prompts` creates it.
    """

    text: str
    # The bytes of each token.
    tokens: Sequence[bytes]

    def scored(self, following: list[ScoredToken]) -> list[ScoredToken]:
        """Return all tokens of the prompt with their log probabilities and their positions in the text. The first token
        has no log probability.

        `following` are the scored tokens of the prompt except the first. If log probabilities are missing there, the
        result is empty.
        """
        if len(following) != len(self.tokens) - 1:
            return []
        tokens, offset = [], 0
        for token in [ScoredToken(self.tokens[0], None), *following]:
            tokens.append(structs.replace(token, offset=min(offset, len(self.text))))
            offset += len(token.text)
        return tokens


@dataclass(frozen=True)
class PlacedImage:
    """An image or audio of a prompt that has been prepared for the model, and the index of the first of the prompt's
    tokens that stand for it.
    """

    image: PreparedImage
    start: int


@dataclass(frozen=True)
class EncodedPrompt:
    """The token ids of a prompt, including those that stand for its images or audio, and these images with their
    places.
    """

    tokens: list[int]
    images: Sequence[PlacedImage] = ()

    @property
    def text(self) -> list[int]:
        """The ids of the prompt's tokens before its first image. Only this part can be looked up in the prefix caches
        of several engines, because from the first image on each engine has its own ids for the images' features.
        """
        return self.tokens[: self.images[0].start] if self.images else self.tokens


async def encode_prompts(
    services: Services, body: ChatParameters | CompletionRequest, codec: TextCodec, context: RequestContext
) -> list[EncodedPrompt]:
    """Encode each prompt of a request and return the prompts in order; a chat has exactly one.

    Raises InvalidField and NoChatTemplate, and ImageReaderUnavailable and QueueFull if images cannot be prepared now.
    """
    if isinstance(body, ChatParameters):
        return [await encode_chat(services, body, codec, context)]
    encoded = []
    for prompt in body.prompts:
        if isinstance(prompt, str):
            add_special = body.add_special_tokens is not False
            prompt = await codec.encode_text(prompt, add_special=add_special, owner=context.owner)
            await asyncio.sleep(0)  # many short prompts together take long
        if codec.vision is not None:
            _check_no_image_tokens(prompt, codec.vision, codec.placeholder)
        encoded.append(EncodedPrompt(prompt))
    return encoded


def _check_no_image_tokens(prompt: Sequence[int], model: VisionModel, placeholder: int) -> None:
    if reserved := [token for token in (model.image_token_id, placeholder) if token in prompt]:
        noun = f"{model.medium}s"
        raise InvalidField(
            "prompt",
            f"must not have token {reserved[0]}, which stands for {noun}: "
            f"send {noun} in messages to /v1/chat/completions",
        )


async def encode_chat(
    services: Services, body: ChatParameters, codec: TextCodec, context: RequestContext
) -> EncodedPrompt:
    """Render a chat with the model's chat template, prepare its images and audio, and return the encoded prompt.

    Raises NoChatTemplate before any other check, InvalidField, and ImageReaderUnavailable and QueueFull if images
    cannot be prepared now.
    """
    codec.writer.require_template()
    variables = template_variables(body, codec, context.leniency)
    return await encode_messages(
        services, body.messages, lambda: listed_tools(body, codec), variables, codec, context, body.cache_salt
    )


@dataclass(frozen=True)
class AlikePrompts:
    """The encoded prompts of several chats that begin with the same tokens. Each prompt is `head`, followed by one of
    the `tails`. `encode_alike` creates it.
    """

    head: EncodedPrompt
    tails: list[list[int]]


async def encode_alike(
    services: Services, chats: Sequence[ChatParameters], codec: TextCodec, context: RequestContext
) -> AlikePrompts:
    """Encode the prompts of chats that differ only in the end of their last message, and have the same images.

    What the prompts have in common is encoded once. Each prompt, `head` and its tail together, equals the result of
    `encode_chat` for the chat. Raises InvalidField, NoChatTemplate, ImageReaderUnavailable and QueueFull.
    """
    first = await encode_chat(services, chats[0], codec, context)
    variables = template_variables(chats[0], codec, Leniency())

    def tails() -> list[list[int]]:
        written = [codec.render_chat([m.for_template() for m in chat.messages], None, variables) for chat in chats]
        return codec.encode_ends(written)

    encoded = await context.in_turn(tails, is_long=True)
    num_common = len(first.tokens) - len(encoded[0])
    if first.tokens[num_common:] == encoded[0]:
        return AlikePrompts(EncodedPrompt(first.tokens[:num_common], first.images), encoded)
    # The tokenizer does not encode the end of a text on its own as it does within the text.
    other_prompts = [await encode_chat(services, chat, codec, context) for chat in chats[1:]]
    return AlikePrompts(EncodedPrompt([], first.images), [prompt.tokens for prompt in (first, *other_prompts)])


async def encode_messages(
    services: Services,
    messages: Sequence[ChatMessage],
    offered: Callable[[], Sequence[AnyTool]],
    variables: Mapping[str, Any] | None,
    codec: TextCodec,
    context: RequestContext,
    cache_salt: str | None = None,
) -> EncodedPrompt:
    """Encode the prompt of messages and of the tools that `offered` returns. `offered` may raise InvalidField.

    `variables` are additional variables for the chat template, and `cache_salt` is the body's field: prepared images
    are shared only by requests with equal salts. Images or audio that the model does not take are replaced by a note in
    older messages. In the user's last message they are replaced only for a lenient request, and refused otherwise.
    Raises InvalidField, NoChatTemplate, ImageReaderUnavailable and QueueFull.
    """

    def to_objects() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        tools = [tool_for_template(tool) for tool in offered()]
        return [message.for_template() for message in messages], tools

    plain, tools = await context.in_turn(to_objects, is_long=len(messages) > FEW_MESSAGES)
    supported_medium = None if codec.vision is None else codec.vision.medium
    sources = _sources(messages)
    for medium, parts in sources.items():
        if parts and medium is not supported_medium:
            _leave_out(plain, medium, codec, context.leniency, services.models.taking(medium))
    tokens, written = await codec.encode_chat(plain, tools, variables, owner=context.owner)
    context.leniency.convert(written.converted)
    context.leniency.note(written.left_out)
    if supported_medium is None or codec.vision is None or not sources[supported_medium]:
        return EncodedPrompt(tokens)
    if supported_medium is Medium.AUDIO:
        require_decoder(sources[supported_medium][0].param)
    images = await services.images.read(codec.vision, sources[supported_medium], context.requester(cache_salt))
    return _with_images(tokens, codec.placeholder, [images[number] for number in written.media])


def _sources(messages: Sequence[ChatMessage]) -> dict[Medium, list[ImageSource]]:
    """Return the images and the audio of the messages, each with its path in the request's body, keyed by medium. Both
    media are always present.
    """
    sources: dict[Medium, list[ImageSource]] = {Medium.IMAGE: [], Medium.AUDIO: []}
    for number, message in enumerate(messages):
        for index, part in message.media:
            field = f"messages[{number}].content[{index}]"
            if part.type == "image_url":
                url, is_small = part.image_url.url, part.image_url.detail == "low"
                sources[Medium.IMAGE].append(ImageSource(url, is_small, f"{field}.image_url.url"))
            else:
                url = f"data:;base64,{part.input_audio.data}"
                sources[Medium.AUDIO].append(ImageSource(url, False, f"{field}.input_audio.data"))
    return sources


def _leave_out(
    messages: Sequence[dict[str, Any]], medium: Medium, codec: TextCodec, leniency: Leniency, able: Sequence[str]
) -> None:
    """Replace, in the messages for the chat template, each image or audio part of the medium `medium` by a note,
    because the model does not take this medium. The replacements are reported to `leniency`.

    Raises InvalidField if `leniency` does not allow this, for example for the user's last message in a strict request,
    which the model is asked to read. The error names `able`, the models that take this medium.
    """
    last_user = max((number for number, message in enumerate(messages) if message["role"] == "user"), default=-1)
    reads = "text only" if codec.vision is None else f"text and {codec.vision.medium}s"
    for number, message in enumerate(messages):
        for index, part in enumerate(message["content"] if isinstance(message.get("content"), list) else ()):
            if part["type"] != _PART_TYPES[medium]:
                continue
            field = f"messages[{number}].content[{index}]"
            leave_out = leniency.leave_out if number == last_user else leniency.leave_out_of_history
            if not leave_out(field, f" ({medium})"):
                alternatives = f"{', '.join(map(quoted, able))} can" if able else "no model that is served can"
                raise InvalidField(field, f"is {_NOUNS[medium]}, and this model reads {reads}; {alternatives} read it")
            part.update(type="text", text=f"[{medium} left out: this model reads {reads}]")


def _with_images(tokens: list[int], placeholder: int, images: Sequence[PreparedImage]) -> EncodedPrompt:
    """Build the prompt in which the tokens of one image each, in order, stand in place of the placeholder tokens.
    `placeholder` is the id of the placeholder token.
    """
    expanded: list[int] = []
    placed: list[PlacedImage] = []
    for token in tokens:
        if token != placeholder:
            expanded.append(token)
            continue
        image = images[len(placed)]
        placed.append(PlacedImage(image, len(expanded)))
        expanded += image.expansion
    return EncodedPrompt(expanded, placed)


def engine_images(prompt: EncodedPrompt, cache_salt: str | None) -> list[Image]:
    """Return the images of a prompt in the format of the engine protocol. Their ids depend on the cache salt, so that
    requests with different salts share no cached images.
    """

    def digest(image: PreparedImage) -> str:
        return blake2b(f"{cache_salt}\n{image.digest}".encode(), person=b"image").hexdigest()

    return [
        Image(digest(image), str(image.path), start, len(image.expansion), image.grid)
        for image, start in ((placed.image, placed.start) for placed in prompt.images)
    ]


async def encode_prediction(
    body: ChatParameters | CompletionRequest, codec: TextCodec, model: ModelInfo, owner: TaskOwner
) -> list[int]:
    """Return the token ids of a chat's `prediction`, a text that the answer is expected to repeat in large part; empty
    if the body is no chat or has no prediction.

    `owner` is the owner of the task of encoding a long text in a worker thread. Raises InvalidField if there are more
    tokens than a sequence of the model may have.
    """
    if not isinstance(body, ChatParameters) or body.prediction is None:
        return []
    text = body.prediction.text
    tokens = await codec.encode_text(text, add_special=False, parse_special=False, param="prediction", owner=owner)
    if len(tokens) > model.max_length:
        raise InvalidField(
            "prediction",
            "may have at most",
            limit=f"{model.max_length} tokens",
            limited_by=model.limited_by,
            given=len(tokens),
        )
    return tokens


def echoed_prompts(
    body: CompletionRequest, encoded: Sequence[list[int]], codec: TextCodec, vocab_size: int
) -> list[EchoedPrompt | None]:
    """Return the prompts of a request with `echo`, in order, as they are to be returned before the answers; for a
    request without `echo`, None for each prompt. Slow, so call it in a thread.

    `encoded` are the token ids of the prompts, and `vocab_size` is the size of the model's vocabulary. Raises
    InvalidField for ids outside the vocabulary.
    """
    echoed = []
    for prompt, tokens in zip(body.prompts, encoded, strict=True):
        unknown = next((token for token in tokens if token >= vocab_size), None)
        if unknown is not None:
            raise InvalidField(
                "prompt", f"must have ids below {vocab_size}, the model's vocabulary size", given=unknown
            )
        text = prompt if isinstance(prompt, str) else codec.decode(tokens, param="prompt")
        echoed.append(
            EchoedPrompt(text, [codec.tokenizer.token_bytes(token) for token in tokens]) if body.echo else None
        )
    return echoed


def template_variables(body: ChatParameters, codec: TextCodec, leniency: Leniency) -> dict[str, Any]:
    """Return the variables that a request sets for the chat template, by name, including those that switch reasoning on
    or off. They come from `chat_template_kwargs`, `reasoning_effort` and a reasoning budget of 0.

    If the template cannot honour the reasoning effort, the effort is left out of a lenient request, which `leniency`
    reports, and otherwise refused with InvalidField.
    """
    thinking = codec.writer.thinking
    variables = dict(body.chat_template_kwargs or {})
    effort = body.reasoning_effort
    if body.thinking_token_budget == 0 and effort is None and not variables.keys() & thinking.names:
        effort = "none"
    for name in THINKING_NAMES:
        # Clients know one of these names. The template may have another one, or an effort.
        is_renamed = not codec.writer.reads(name) and (thinking.switch_on or thinking.efforts)
        if is_renamed and isinstance(variables.get(name), bool):
            if variables.pop(name):
                variables = {**thinking.switch_on, **variables}
            else:
                effort = "none"
    if effort is None:
        return variables
    chosen = thinking.variables(effort)
    if chosen is None:
        if effort != "none" and not leniency.leave_out("reasoning_effort"):
            raise InvalidField(
                "reasoning_effort", "has no effect with this model: its chat template does not read it", given=effort
            )
        return variables
    if chosen.effort not in (None, effort):
        leniency.convert_value("reasoning_effort", effort, f" (as {quoted(chosen.effort)})")
    return {**chosen.values, **variables}


# The tokens that precede prefix, suffix and middle.
_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)
# Tokens that models write after a middle, in addition to the usual end tokens.
_ENDS = (
    "<|endoftext|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<file_sep>",
    "▁<EOT>",
    "<EOT>",
)


def infill_tokens(codec: TextCodec) -> list[int]:
    """Return the ids of the three tokens that precede prefix, suffix and middle, in this order, in a prompt for
    fill-in-the-middle; empty if the model's tokenizer has no such tokens.
    """
    token_ids = codec.opaque_tokens
    return next(([token_ids[name] for name in names] for names in _FAMILIES if token_ids.keys() >= set(names)), [])


async def with_suffix(body: CompletionRequest, codec: TextCodec, owner: TaskOwner) -> CompletionRequest:
    """Return a copy of the body whose prompts ask the model to fill in the text between the prompt and the body's
    `suffix`. The parts are in the order prefix, suffix, middle, and the tokens that end a middle become stop tokens.

    `owner` is the owner of the task of encoding a long text in a worker thread. Raises InvalidField if the tokenizer
    has no tokens for fill-in-the-middle.
    """
    marks = infill_tokens(codec)
    if not marks:
        raise InvalidField(
            "suffix", "is not supported by this model: its tokenizer has no tokens such as <|fim_prefix|>"
        )
    before, between, after = marks
    suffix = await codec.encode_text(body.suffix or "", add_special=False, param="suffix", owner=owner)
    prompts = []
    for prompt in body.prompts:
        prefix = prompt
        if isinstance(prompt, str):
            prefix = await codec.encode_text(prompt, add_special=False, owner=owner)
        tokens = [before, *prefix, between, *suffix, after]
        is_framed = isinstance(prompt, str) and body.add_special_tokens is not False
        prompts.append(codec.tokenizer.framed(tokens) if is_framed else tokens)
    ends = [codec.opaque_tokens[name] for name in _ENDS if name in codec.opaque_tokens]
    stop_token_ids = [*(body.stop_token_ids or []), *marks, *ends]
    return body.model_copy(update={"prompt": prompts, "suffix": None, "stop_token_ids": stop_token_ids})
