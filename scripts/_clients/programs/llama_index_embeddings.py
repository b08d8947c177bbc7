"""LlamaIndex's embeddings, with `llama-index-embeddings-openai-like`."""

from _clients.programs.checks import ABOUT, QUESTION, check, nearest, recipe, run

embeddings = recipe()["embeddings"]


@check("get_query_embedding, get_text_embedding_batch")
def _embed() -> None:
    nearest(embeddings.get_query_embedding(QUESTION), embeddings.get_text_embedding_batch(ABOUT))


run()
