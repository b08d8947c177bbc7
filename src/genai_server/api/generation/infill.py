"""Fill in the middle: a prompt with a suffix becomes the tokens that code models were trained on."""

from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.completions import CompletionRequest
from genai_server.text.codec import TextCodec

# The tokens before prefix, suffix and middle.
_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)
# What models write after a middle, beside the tokens that end any answer.
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
    """The tokens before prefix, suffix and middle; none if the model's tokenizer has none."""
    known = codec.opaque_tokens
    return next(([known[name] for name in names] for names in _FAMILIES if known.keys() >= set(names)), [])


async def with_suffix(body: CompletionRequest, codec: TextCodec) -> CompletionRequest:
    """The same request with prompts that say what follows the answer, in the order prefix, suffix, middle.

    Raises InvalidField if the model has no tokens for that.
    """
    marks = infill_tokens(codec)
    if not marks:
        raise InvalidField(
            "suffix cannot be used: the model's tokenizer has no tokens to fill in the middle, such as <|fim_prefix|>",
            param="suffix",
        )
    before, between, after = marks
    suffix = await codec.encode_text(body.suffix or "", add_special=False, param="suffix")
    prompts = []
    for given in body.prompts:
        prefix = await codec.encode_text(given, add_special=False) if isinstance(given, str) else given
        tokens = [before, *prefix, between, *suffix, after]
        is_framed = isinstance(given, str) and body.add_special_tokens is not False
        prompts.append(codec.tokenizer.framed(tokens) if is_framed else tokens)
    ends = [codec.opaque_tokens[name] for name in _ENDS if name in codec.opaque_tokens]
    stop_token_ids = [*(body.stop_token_ids or []), *marks, *ends]
    return body.model_copy(update={"prompt": prompts, "suffix": None, "stop_token_ids": stop_token_ids})
