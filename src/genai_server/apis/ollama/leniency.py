"""What the lenient Ollama API accepts and removes although this server does not support it."""

from typing import Any

from genai_server.http.leniency import remove

# Options of model loading and memory use, and options that Ollama itself ignores by now.
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
# A conversation that is too long is an error; it is never truncated.
TRUNCATION_FIELDS = ("truncate", "shift")
# Ollama's clients may send JSON schema's `items` next to a function.
WITHOUT_EFFECT = ("tools[].items",)


def leave_out(body: Any) -> list[str]:
    """Remove unsupported parts from a body; returns the locations removed."""
    found = remove(body, *(f"options.{option}" for option in OPTIONS_WITHOUT_EFFECT))
    found += remove(body, *WITHOUT_EFFECT)
    if isinstance(body, dict):
        found += [field for field in TRUNCATION_FIELDS if body.get(field) is True and body.pop(field)]
    return found


def leave_out_of_embeddings(body: Any) -> list[str]:
    """Like `leave_out`, for embeddings, which no option affects."""
    return remove(body, "options")
