"""Other servers' fields for how much a model thinks, which mean the same as `reasoning_effort`."""

from typing import Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from genai_server.generation.parameters.base import Wire, field_error
from genai_server.generation.parameters.chat_messages import ChatParameters, ReasoningEffort

# The effort of a request that asks for thoughts without saying how many.
_SOME: ReasoningEffort = "medium"


class ReasoningOptions(Wire):
    """OpenRouter's options of reasoning."""

    effort: ReasoningEffort | None = None
    enabled: bool | None = Field(None, description="false is the effort none, true the effort medium.")
    exclude: Literal[False] | None = Field(None, description="Reasoning is always returned.")
    summary: Literal["auto"] | None = Field(None, description="Reasoning is returned in full, never summarized.")


class ThinkingOptions(Wire):
    """Anthropic's, DeepSeek's and GLM's option of thinking."""

    type: Literal["enabled", "disabled", "adaptive", "auto"] = Field(
        description="disabled is the effort none, enabled the effort medium; the others leave it to the chat template."
    )
    budget_tokens: int | None = Field(
        None, ge=1, description="No effect: max_tokens limits reasoning and answer together."
    )


class OtherThinkingFields(ChatParameters):
    """Other names for `reasoning_effort`. Several may be given if they do not contradict each other."""

    reasoning: ReasoningOptions | None = Field(None, description="OpenRouter's form of reasoning_effort.")
    thinking: ThinkingOptions | None = Field(None, description="Another form of reasoning_effort.")
    enable_thinking: bool | None = Field(None, description="false is the reasoning_effort none, true medium.")

    # The field that has set `reasoning_effort`, if another one has.
    _effort_field: str | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _are_an_effort(self) -> Self:
        options = self.reasoning
        effort, enabled = (None, None) if options is None else (options.effort, options.enabled)
        efforts = {"reasoning_effort": self.reasoning_effort, "reasoning.effort": effort}
        switches = {
            "reasoning.enabled": enabled,
            "thinking.type": None if self.thinking is None else _SWITCHES.get(self.thinking.type),
            "enable_thinking": self.enable_thinking,
        }
        first, wanted = None, None
        for field, effort in efforts.items():
            if effort is None:
                continue
            if wanted not in (None, effort):
                raise field_error(field, f"contradicts {first}")
            first, wanted = first or field, effort
        for field, is_on in switches.items():
            if is_on is None:
                continue
            if wanted is not None and is_on == (wanted == "none"):
                raise field_error(field, f"contradicts {first}")
            first, wanted = first or field, wanted or (_SOME if is_on else "none")
        if self.reasoning_effort is None:
            self._effort_field, self.reasoning_effort = first, wanted
        return self

    @property
    def thinking_names(self) -> dict[str, str]:
        """Maps `reasoning_effort` to the name that the client used."""
        return {} if self._effort_field is None else {"reasoning_effort": self._effort_field}


_SWITCHES = {"enabled": True, "disabled": False}
