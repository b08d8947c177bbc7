"""What an answer is made of, for whoever tells it in the form of one API or another."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """More of the answer's own text."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins: the `index`-th of the answer, counted from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of a call's arguments, which together are one JSON object."""

    index: int
    fragment: str


Part = Content | Reasoning | ToolCallStart | ToolCallArguments
