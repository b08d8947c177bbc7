"""Response bodies of the embedding, rerank and score endpoints."""

import base64
import sys
from array import array
from collections.abc import Sequence

from genai_server.apis.shared.base import JsonObject


def embeddings_body(model: str, vectors: Sequence["array[float]"], num_tokens: int, *, as_base64: bool) -> JsonObject:
    """OpenAI's list of embeddings, in the order of the texts. `num_tokens` counts all texts."""
    entries = [
        {"object": "embedding", "index": index, "embedding": _as_base64(vector) if as_base64 else vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": entries, "model": model, "usage": _usage(num_tokens)}


def rerank_body(
    id: str, model: str, scores: Sequence[float], num_tokens: int, *, top_n: int | None, documents: Sequence[str] | None
) -> JsonObject:
    """Jina's list of results, best first, with the fields that Cohere's clients read. `documents` are returned."""
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: top_n or None]
    results: list[JsonObject] = [{"index": index, "relevance_score": scores[index]} for index in ranked]
    if documents is not None:
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    meta = {"tokens": {"input_tokens": num_tokens, "output_tokens": 0}}
    found = {"id": id, "object": "list", "model": model, "results": results}
    return found | {"usage": _usage(num_tokens), "meta": meta}


def scores_body(id: str, created: int, model: str, scores: Sequence[float], num_tokens: int) -> JsonObject:
    """vLLM's list of scores, in the order of the pairs."""
    entries = [{"object": "score", "index": index, "score": score} for index, score in enumerate(scores)]
    found = {"id": id, "object": "list", "created": created, "model": model, "data": entries}
    return found | {"usage": _usage(num_tokens)}


def _usage(num_tokens: int) -> JsonObject:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _as_base64(vector: "array[float]") -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode()
