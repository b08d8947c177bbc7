"""Responses with vectors and scores."""

from array import array

from genai_server.apis.embeddings import Pooled, rerank_body


def scored(*scores: float) -> Pooled:
    return Pooled("m", [array("d", [score]) for score in scores], 12)


def test_all_documents_are_ranked_without_top_n() -> None:
    for top_n in (None, 0, 9):
        body = rerank_body("r", scored(0.1, 0.9), top_n=top_n, documents=None)
        assert body["results"] == [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
