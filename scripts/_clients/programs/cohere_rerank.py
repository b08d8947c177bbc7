"""Cohere's reranking, with `cohere`."""

import cohere

from _clients.programs.checks import ABOUT, QUESTION, URL, equal, recipe, run

names = recipe()


def check_rerank_of_ClientV2() -> None:
    found = names["client"].rerank(model="scores", query=QUESTION, documents=ABOUT, top_n=2)
    equal((found.results[0].index, len(found.results)), (0, 2))


def check_rerank_of_Client() -> None:
    client = cohere.Client(api_key="none", base_url=URL)
    found = client.rerank(model="scores", query=QUESTION, documents=ABOUT, return_documents=True)
    equal(found.results[0].document.text, ABOUT[0])


run(globals())
