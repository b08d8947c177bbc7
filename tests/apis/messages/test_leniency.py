"""Fields that are removed from bodies of the Messages API, and fields that are left to be refused."""

from copy import deepcopy
from typing import Any

import pytest

from genai_server.apis.messages.leniency import LEFT_OUT

TOOL = {"name": "add", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}}
NO_DOCUMENT = {"type": "text", "text": "[document left out: this model reads text only]"}


def test_images_are_left_for_models_that_take_them() -> None:
    body = {"messages": [{"role": "user", "content": [IMAGE, {"type": "tool_result", "content": [IMAGE]}]}]}
    assert (LEFT_OUT.remove_from(before := deepcopy(body)), before) == ([], body)


OTHER_IMAGES: list[Any] = [
    {"type": "file", "file_id": "f"},
    {"type": "base64", "media_type": "image/tiff", "data": "AA=="},
    {"type": "base64", "media_type": "image/png", "data": ""},
    {"type": "url", "url": None},
    None,
]
NO_IMAGE = {"type": "text", "text": "[image left out: it is not part of the request, or of another type]"}


@pytest.mark.parametrize("source", OTHER_IMAGES)
def test_an_unreadable_image_is_a_note_in_history_and_results(source: Any) -> None:
    image = {"type": "image", "source": source}
    asked = {"role": "user", "content": [image, {"type": "tool_result", "content": [deepcopy(image)]}]}
    body = {"messages": [{"role": "user", "content": [deepcopy(image)]}, {"role": "assistant", "content": "x"}, asked]}
    assert LEFT_OUT.remove_from(body) == ["messages[0].content[0] (image)", "messages[2].content[1].content[0] (image)"]
    assert body["messages"][0] == {"role": "user", "content": [NO_IMAGE]}
    # What the last message asks to be read is refused.
    assert asked["content"] == [image, {"type": "tool_result", "content": [NO_IMAGE]}]


def test_citations_and_unknown_keys_are_left_out_of_the_history() -> None:
    text = {"type": "text", "text": "a"}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"any": 1}}
    said = [{**text, "citations": [{}], "tone": 1}, {**call, "parsed": {}}]

    def result(content: Any) -> Any:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [content]}]}

    body = {
        "system": [{**text, "mood": 1}],
        "messages": [{"role": "assistant", "content": said, "id": "m"}, result({**text, "x": 1})],
    }
    assert LEFT_OUT.remove_from(body) == [
        "messages[0].content[0].citations",
        "messages[].id",
        "messages[].content[].tone",
        "messages[].content[].parsed",
        "messages[].content[].content[].x",
        "system[].mood",
    ]
    assert body == {"system": [text], "messages": [{"role": "assistant", "content": [text, call]}, result(text)]}


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "a"},
        {"type": "content", "content": "a"},
        {"type": "content", "content": [{"type": "text", "text": "a"}, IMAGE]},
    ],
)
def test_a_document_of_text_and_images_stays_without_citations(source: Any) -> None:
    def messages(**more: Any) -> list[Any]:
        document = {"type": "document", "source": deepcopy(source), "title": "T", **more}
        return [{"role": "user", "content": [document, {"type": "tool_result", "content": [{**document}]}]}]

    body = {"messages": messages(citations={"enabled": True})}
    places = "messages[0].content[0].citations", "messages[0].content[1].content[0].citations"
    assert (tuple(LEFT_OUT.remove_from(body)), body) == (places, {"messages": messages()})


def test_a_document_in_a_document_is_left_out() -> None:
    source: Any = {"type": "content", "content": [deepcopy(PDF)]}
    body = {"messages": [{"role": "user", "content": [{"type": "document", "source": source}]}]}
    assert LEFT_OUT.remove_from(body) == ["messages[0].content[0].source.content[0] (document)"]
    assert source["content"] == [NO_DOCUMENT]


@pytest.mark.parametrize(
    "body",
    [
        {"unknown": 1},
        {"output_config": {"effort": "high"}, "thinking": {"type": "enabled"}},
        {"compaction": {"type": "summarize"}},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"type": "custom", **TOOL}]},
        {"tools": [{"type": "tool_search_tool_other"}, {"type": "tool_search_tool_é"}]},
        {"tools": [{"type": "web_search_\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668"}]},
        {"tools": 5, "messages": [3, {"content": "x"}, {"content": [None, {"type": ["image"]}]}], "thinking": "off"},
        [],
        None,
    ],
)
def test_all_else_stays(body: Any) -> None:
    before = repr(body)
    assert LEFT_OUT.remove_from(body) == []
    assert repr(body) == before
