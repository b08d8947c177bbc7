"""litellm's embeddings, and its reranking in the forms of Jina, vLLM and Cohere."""

from litellm import rerank

from _clients.programs.checks import ABOUT, QUESTION, URL, equal, nearest, recipe, run

embedding = recipe()["embedding"]


def check_embedding() -> None:
    found = embedding(input=[QUESTION, *ABOUT])
    question, *texts = (entry["embedding"] for entry in found.data)
    nearest(question, texts)


def _rerank(provider: str) -> None:
    found = rerank(f"{provider}/scores", QUESTION, ABOUT, top_n=2, api_base=URL, api_key="none")
    equal([entry["index"] for entry in found.results][0], 0)
    equal(len(found.results), 2)


def check_rerank_as_Jina() -> None:
    _rerank("jina_ai")


def check_rerank_as_vLLM() -> None:
    _rerank("hosted_vllm")


def check_rerank_as_Cohere() -> None:
    _rerank("cohere")


run(globals())
