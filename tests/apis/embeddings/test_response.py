"""Responses with vectors and scores."""

import base64
import struct
from array import array

from genai_server.apis.embeddings.embed import Pooled
from genai_server.apis.embeddings.routes import embeddings_body, rerank_body, scores_body

EMBEDDINGS = Pooled("m", [array("f", [0.5, -2.0]), array("f", [1.0, 0.25])], 7)


def scored(*scores: float) -> Pooled:
    return Pooled("m", [array("d", [score]) for score in scores], 12)


def test_embeddings_are_number_lists_in_the_order_of_texts() -> None:
    body = embeddings_body(EMBEDDINGS, as_base64=False)
    assert body == {
        "object": "list",
        "model": "m",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -2.0]},
            {"object": "embedding", "index": 1, "embedding": [1.0, 0.25]},
        ],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_base64_has_the_bytes_of_float32_lowest_first() -> None:
    body = embeddings_body(EMBEDDINGS, as_base64=True)
    assert struct.unpack("<2f", base64.b64decode(body["data"][0]["embedding"])) == (0.5, -2.0)


def test_documents_are_ranked_by_their_scores() -> None:
    body = rerank_body("r", scored(0.1, 0.9, 0.5), top_n=2, documents=["a", "b", "c"])
    assert body["results"] == [
        {"index": 1, "relevance_score": 0.9, "document": {"text": "b"}},
        {"index": 2, "relevance_score": 0.5, "document": {"text": "c"}},
    ]
    assert body["usage"] == {"prompt_tokens": 12, "total_tokens": 12}


def test_all_documents_are_ranked_without_top_n() -> None:
    for top_n in (None, 0, 9):
        body = rerank_body("r", scored(0.1, 0.9), top_n=top_n, documents=None)
        assert body["results"] == [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]


def test_scores_keep_the_order_of_the_pairs() -> None:
    body = scores_body("s", 5, scored(0.1, 0.9))
    assert [(entry["index"], entry["score"]) for entry in body["data"]] == [(0, 0.1), (1, 0.9)]
