"""litellm's embeddings, and its reranking in the forms of Jina, vLLM and Cohere."""

from litellm import rerank

from _clients.programs.checks import ABOUT, QUESTION, URL, equal, nearest, recipe, run

embedding = recipe()["embedding"]


def check_embedding() -> None:
    found = embedding(input=[QUESTION, *ABOUT])
    question, *texts = (entry["embedding"] for entry in found.data)
    nearest(question, texts)


def check_rerank_as_Jina_vLLM_and_Cohere() -> None:
    for provider in ("jina_ai", "hosted_vllm", "cohere"):
        found = rerank(f"{provider}/scores", QUESTION, ABOUT, top_n=2, api_base=URL, api_key="none")
        equal((found.results[0]["index"], len(found.results)), (0, 2))


run(globals())
