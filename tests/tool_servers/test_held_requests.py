"""Requests whose tools are run, as the supervisor knows them: API processes find and end those of all."""

from genai_server.config.tool_servers import ToolServer
from genai_server.messages.admin import RequestPhase, RequestState
from genai_server.messages.generation_request import FinishReason
from genai_server.messages.supervisor_protocol import (
    EndRequest,
    FindRequests,
    FromToolServers,
    HoldRequest,
    MatchingRequests,
    ReleaseRequest,
    ToolRequest,
)
from genai_server.tool_servers.servers import HeldRequests, ToolServers, ToolSession


def request(unique_id: str, id: str = "x", model: str = "m", device: str = "cpu", age: float = 0.0) -> ToolRequest:
    return ToolRequest(RequestState(id, RequestPhase.TOOLS, age, 1, 0, 1, unique_id=unique_id), model, device)


class ApiProcess:
    """The session of one, and what it is sent."""

    def __init__(self, held: HeldRequests) -> None:
        self.sent: list[FromToolServers] = []
        self.session = ToolSession(ToolServers(dict[str, ToolServer]()), held, self.sent.append)

    def found(self, question: FindRequests) -> list[str]:
        self.session.receive(question)
        answer = self.sent.pop()
        assert isinstance(answer, MatchingRequests)
        return [each.state.unique_id for each in answer.requests]


def processes() -> tuple[ApiProcess, ApiProcess]:
    held = HeldRequests()
    first, second = ApiProcess(held), ApiProcess(held)
    first.session.receive(HoldRequest(1, request("a", device="")))
    first.session.receive(HoldRequest(2, request("b", id="a")))
    second.session.receive(HoldRequest(1, request("c", model="n")))
    return first, second


def test_all_api_processes_find_the_requests_of_each_other() -> None:
    first, second = processes()
    for process in (first, second):
        assert process.found(FindRequests(5)) == ["a", "b", "c"]
    first.session.receive(ReleaseRequest(1))
    second.session.receive(HoldRequest(1, request("d")))
    assert first.found(FindRequests(5)) == ["b", "d"]
    first.session.close()
    assert second.found(FindRequests(5)) == ["d"]


def test_a_name_is_a_unique_id_first() -> None:
    first, _ = processes()
    assert first.found(FindRequests(5, "a")) == ["a"]
    first.session.receive(ReleaseRequest(1))
    assert first.found(FindRequests(5, "a")) == ["b"]
    assert first.found(FindRequests(5, "nothing")) == []


def test_the_process_of_a_request_is_told_to_end_it() -> None:
    first, second = processes()
    assert second.found(FindRequests(5, "b", end=FinishReason.CANCELLED)) == ["b"]
    assert (first.sent, second.sent) == ([EndRequest(2, FinishReason.CANCELLED)], [])


def test_several_requests_of_a_name_are_not_ended() -> None:
    first, second = processes()
    assert first.found(FindRequests(5, "x", end=FinishReason.CANCELLED)) == ["a", "c"]
    assert (first.sent, second.sent) == ([], [])


def test_requests_of_a_device_are_ended_together() -> None:
    first, second = processes()
    ending = FindRequests(5, model_devices=[("m", "cpu"), ("n", "cuda")], end=FinishReason.TERMINATED)
    assert second.found(ending) == ["a", "b"]
    assert first.sent == [EndRequest(1, FinishReason.TERMINATED), EndRequest(2, FinishReason.TERMINATED)]


def test_a_held_request_grows_older() -> None:
    held = HeldRequests()
    process = ApiProcess(held)
    process.session.receive(HoldRequest(1, request("a", age=2.0)))
    (found,) = held.find(FindRequests(1))
    assert found.state.age >= 2.0
