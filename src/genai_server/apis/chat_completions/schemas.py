"""The body of /v1/chat/completions, and the fields without effect that are removed from it unless GENAI_STRICT is
set.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from genai_server.apis.shared.chat_history import FILES, HISTORY
from genai_server.apis.shared.thinking_fields import OtherThinkingFields
from genai_server.generation.parameters.base import ChatRouterFields, elements, field_error
from genai_server.generation.parameters.chat_messages import (
    MAX_TOOLS,
    Function,
    NamedFunction,
    NamedTool,
    Tool,
)
from genai_server.generation.parameters.sampling_parameters import OtherStructureFields, StreamFields
from genai_server.http.leniency import LeftOut, replace_media

# Removed from text completions unless GENAI_STRICT is set: vLLM's choice of grammar library and JSON whitespace.
COMPLETIONS = LeftOut(
    fields=("guided_decoding_backend", "guided_whitespace_pattern", "structured_outputs.whitespace_pattern")
)
# Removed from chat completions unless GENAI_STRICT is set: this server does not search the web or fall back to others.
CHATS = LeftOut(
    fields=(*COMPLETIONS.fields, "fallbacks", "web_search_options"),
    values={"verbosity": ("low", "high"), "reasoning.summary": ("concise", "detailed")},
    rules=(lambda body: replace_media(body, FILES, "text", "messages[].content[]"), *HISTORY.rules),
    forms=HISTORY.forms,
)


class ChatCompletionRequest(OtherThinkingFields, StreamFields, ChatRouterFields, OtherStructureFields):
    """Body of /v1/chat/completions."""

    functions: Annotated[list[Function], elements(MAX_TOOLS)] | None = Field(None, description="Older name for tools.")
    function_call: Literal["none", "auto"] | NamedFunction | None = Field(
        None, description="Older name for tool_choice; only allowed with functions."
    )

    @model_validator(mode="after")
    def _functions_are_tools(self) -> Self:
        if self.function_call is not None and self.functions is None:
            raise field_error("function_call", "is only allowed with functions")
        if self.functions is None:
            return self
        called = self.function_call
        same_in_new = {
            "tools": [Tool(type="function", function=function) for function in self.functions],
            "tool_choice": NamedTool(type="function", function=called) if isinstance(called, NamedFunction) else called,
            "parallel_tool_calls": False,
        }
        for field, value in same_in_new.items():
            if getattr(self, field) not in (None, value):  # FastAPI validates a body twice
                raise field_error(field, "cannot be combined with functions")
            setattr(self, field, value)
        return self

    @property
    def other_names(self) -> dict[str, str]:
        older = {} if self.functions is None else {"tools": "functions", "tool_choice": "function_call"}
        return {**super().other_names, **older, **self.thinking_names}
