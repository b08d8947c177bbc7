"""LlamaIndex's reranking in Jina's form."""

from llama_index.core.schema import NodeWithScore, TextNode

from _clients.programs.checks import ABOUT, QUESTION, check, equal, recipe, run

reranker = recipe()["reranker"]


@check("postprocess_nodes")
def _nodes() -> None:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in reversed(ABOUT)]
    found = reranker.postprocess_nodes(nodes, query_str=QUESTION)
    equal(found[0].node.get_content(), ABOUT[0])
    equal(len(found), 2)


run()
