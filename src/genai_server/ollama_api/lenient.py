"""What Ollama's API takes, unless it is strict, although it has no effect here."""

from typing import Any

from genai_server.openai_api.raw_body import objects_at, remove

# They say how a model is loaded or how its memory is used, or are options that Ollama ignores by now.
OPTIONS_WITHOUT_EFFECT = (
    "draft_num_predict",
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "num_batch",
    "num_ctx",
    "num_gpu",
    "num_gqa",
    "num_keep",
    "num_thread",
    "numa",
    "penalize_newline",
    "rope_frequency_base",
    "rope_frequency_scale",
    "tfs_z",
    "use_mlock",
    "use_mmap",
    "vocab_only",
)
# A conversation that is too long is an error, and never cut.
CUTS = ("truncate", "shift")
# Beside a function Ollama's clients may send JSON schema's word for lists.
WITHOUT_EFFECT = ("tools[].items",)
_NO_IMAGE = "[image left out: this model reads text only]"


def leave_out(body: Any) -> list[str]:
    """Take all this out of a body; returns the places."""
    found = [place for option in OPTIONS_WITHOUT_EFFECT for place in remove(body, f"options.{option}")]
    found += [place for path in WITHOUT_EFFECT for place in remove(body, path)]
    if isinstance(body, dict):
        found += [field for field in CUTS if body.get(field) is True and body.pop(field)]
    return found + _images(body, "messages[]", "content") + _images(body, "", "prompt")


def leave_out_of_embeddings(body: Any) -> list[str]:
    """The same for texts that become vectors: no option changes these."""
    return list(remove(body, "options"))


def _images(body: Any, path: str, field: str) -> list[str]:
    """Put a text in the place of each image, behind the text of `field`."""
    found = []
    for place, holder in objects_at(body, path):
        images, text = holder.get("images"), holder.get(field) or ""
        if isinstance(images, list) and images and isinstance(text, str):
            del holder["images"]
            holder[field] = "\n".join([*([text] if text else []), *[_NO_IMAGE] * len(images)])
            found += [f"{place}.images[{index}] (image)".removeprefix(".") for index in range(len(images))]
    return found
