"""litellm's embeddings, and its reranking in the forms of Jina, vLLM and Cohere."""

from litellm import rerank

from _clients.programs.checks import ABOUT, QUESTION, URL, check, equal, nearest, recipe, run

embedding = recipe()["embedding"]


@check("embedding")
def _embedding() -> None:
    found = embedding(input=[QUESTION, *ABOUT])
    question, *texts = (entry["embedding"] for entry in found.data)
    nearest(question, texts)


def _rerank(provider: str) -> None:
    found = rerank(f"{provider}/scores", QUESTION, ABOUT, top_n=2, api_base=URL, api_key="none")
    equal([entry["index"] for entry in found.results][0], 0)
    equal(len(found.results), 2)


@check("rerank as Jina")
def _jina() -> None:
    _rerank("jina_ai")


@check("rerank as vLLM")
def _vllm() -> None:
    _rerank("hosted_vllm")


@check("rerank as Cohere")
def _cohere() -> None:
    _rerank("cohere")


run()
