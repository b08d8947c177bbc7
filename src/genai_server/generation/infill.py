"""Fill-in-the-middle prompts: turns a prompt with a suffix into the tokens that code models were trained on."""

from genai_server.errors import InvalidField
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.messages.worker_tasks import TaskOwner
from genai_server.text.codec import TextCodec

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
    """The tokens that precede prefix, suffix and middle; empty if the tokenizer has none."""
    known = codec.opaque_tokens
    return next(([known[name] for name in names] for names in _FAMILIES if known.keys() >= set(names)), [])


async def with_suffix(body: CompletionRequest, codec: TextCodec, owner: TaskOwner) -> CompletionRequest:
    """The body with fill-in-the-middle prompts, in the order prefix, suffix, middle.

    `owner` is the request's owner of tasks. Raises InvalidField if the tokenizer has no tokens for fill-in-the-middle.
    """
    marks = infill_tokens(codec)
    if not marks:
        raise InvalidField(
            "suffix", "is not supported by this model: its tokenizer has no tokens such as <|fim_prefix|>"
        )
    before, between, after = marks
    suffix = await codec.encode_text(body.suffix or "", add_special=False, param="suffix", owner=owner)
    prompts = []
    for given in body.prompts:
        prefix = given
        if isinstance(given, str):
            prefix = await codec.encode_text(given, add_special=False, owner=owner)
        tokens = [before, *prefix, between, *suffix, after]
        is_framed = isinstance(given, str) and body.add_special_tokens is not False
        prompts.append(codec.tokenizer.framed(tokens) if is_framed else tokens)
    ends = [codec.opaque_tokens[name] for name in _ENDS if name in codec.opaque_tokens]
    stop_token_ids = [*(body.stop_token_ids or []), *marks, *ends]
    return body.model_copy(update={"prompt": prompts, "suffix": None, "stop_token_ids": stop_token_ids})
