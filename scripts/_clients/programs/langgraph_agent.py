"""LangGraph: a graph of a model and its tools, with `langchain-openai`."""

from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from _clients.programs.checks import ASK_FOR_WEATHER, MODEL, URL, WEATHER, check, equal, get_weather, run

model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none").bind_tools([get_weather])


def _answer(state: MessagesState) -> Any:
    return {"messages": [model.invoke(state["messages"])]}


graph: Any = StateGraph(MessagesState)
graph.add_node("model", _answer)
graph.add_node("tools", ToolNode([get_weather]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")


def _asked(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


@check("tool loop")
def _tools() -> None:
    found = graph.compile().invoke(_asked(ASK_FOR_WEATHER))["messages"]
    equal((len(found), WEATHER in found[-1].content), (4, True))


@check("streamed tool loop")
def _streamed() -> None:
    found = [piece for piece, _ in graph.compile().stream(_asked(ASK_FOR_WEATHER), stream_mode="messages")]
    equal(WEATHER in "".join(piece.content for piece in found if piece.type == "AIMessageChunk"), True)


@check("a second turn of a thread")
def _thread() -> None:
    kept = graph.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    kept.invoke(_asked("say hello"), thread)
    found = kept.invoke(_asked("say again"), thread)["messages"]
    equal([message.content for message in found], ["say hello", "hello", "say again", "again"])


run()
