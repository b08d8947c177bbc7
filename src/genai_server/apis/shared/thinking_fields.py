"""Fields with which other servers' APIs set how much a model reasons: OpenRouter's `reasoning`, Anthropic's `thinking`,
llama.cpp's token budgets and others. `OtherThinkingFields`, a base class of request bodies, translates them to this
server's fields `reasoning_effort` and `thinking_token_budget`.
"""

from typing import Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from genai_server.generation.parameters.base import StrictModel, field_error
from genai_server.generation.parameters.chat_messages import ChatParameters, ReasoningEffort, ThoughtBudget

# The effort of a request that asks for thoughts without saying how many.
_DEFAULT_EFFORT: ReasoningEffort = "medium"


class ReasoningOptions(StrictModel):
    """The field `reasoning` in OpenRouter's API: the effort of reasoning, whether it is enabled, and its maximum number
    of tokens. The options to hide or summarize reasoning are only accepted with values that return it in full.
    """

    effort: ReasoningEffort | None = None
    enabled: bool | None = Field(None, description="false is the effort none, true the effort medium.")
    exclude: Literal[False] | None = Field(None, description="Reasoning is always returned.")
    summary: Literal["auto"] | None = Field(None, description="Reasoning is returned in full, never summarized.")
    max_tokens: ThoughtBudget | None = Field(None, description="Another name of thinking_token_budget.")


class ThinkingOptions(StrictModel):
    """The field `thinking` in the APIs of Anthropic, DeepSeek and GLM: whether the model reasons, and the maximum
    number of tokens of reasoning.
    """

    type: Literal["enabled", "disabled", "adaptive", "auto"] = Field(
        description="disabled is the effort none, enabled the effort medium; the others leave it to the chat template."
    )
    budget_tokens: int | None = Field(None, ge=1, description="Another name of thinking_token_budget.")


class OtherThinkingFields(ChatParameters):
    """Base class of request bodies that accept other servers' fields for `reasoning_effort` and
    `thinking_token_budget`, such as `reasoning`, `thinking` and `enable_thinking`. Validation sets `reasoning_effort`
    and `thinking_token_budget` from them. Several may be given if they do not contradict each other.
    """

    reasoning: ReasoningOptions | None = Field(None, description="OpenRouter's form of reasoning_effort.")
    thinking: ThinkingOptions | None = Field(None, description="Another form of reasoning_effort.")
    enable_thinking: bool | None = Field(None, description="false is the reasoning_effort none, true medium.")
    thinking_budget_tokens: ThoughtBudget | None = Field(None, description="llama.cpp's thinking_token_budget.")
    reasoning_budget_tokens: ThoughtBudget | None = Field(None, description="llama.cpp's thinking_token_budget.")

    # The fields that have set `reasoning_effort` and `thinking_token_budget`, if others have.
    _effort_field: str | None = PrivateAttr(default=None)
    _budget_field: str | None = PrivateAttr(default=None)

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
        first, chosen = None, None
        for field, effort in efforts.items():
            if effort is None:
                continue
            if chosen not in (None, effort):
                raise field_error(field, f"contradicts {first}")
            first, chosen = first or field, effort
        for field, is_on in switches.items():
            if is_on is None:
                continue
            if chosen is not None and is_on == (chosen == "none"):
                raise field_error(field, f"contradicts {first}")
            first, chosen = first or field, chosen or (_DEFAULT_EFFORT if is_on else "none")
        if self.reasoning_effort is None:
            self._effort_field, self.reasoning_effort = first, chosen
        return self

    @model_validator(mode="after")
    def _are_a_budget(self) -> Self:
        budgets = {
            "thinking_token_budget": self.thinking_token_budget,
            "thinking_budget_tokens": self.thinking_budget_tokens,
            "reasoning_budget_tokens": self.reasoning_budget_tokens,
            "thinking.budget_tokens": None if self.thinking is None else self.thinking.budget_tokens,
            "reasoning.max_tokens": None if self.reasoning is None else self.reasoning.max_tokens,
        }
        present = {field: budget for field, budget in budgets.items() if budget is not None}
        for field, budget in present.items():
            if budget != next(iter(present.values())):
                raise field_error(field, f"contradicts {next(iter(present))}")
        if present and self.thinking_token_budget is None:
            self._budget_field, self.thinking_token_budget = next(iter(present.items()))
        return self

    @property
    def thinking_names(self) -> dict[str, str]:
        """Map `reasoning_effort` and `thinking_token_budget` to the names of the fields that the client used in their
        place, so that error messages use the client's names. A field that was not replaced by another one is omitted.
        """
        names = {"reasoning_effort": self._effort_field, "thinking_token_budget": self._budget_field}
        return {field: name for field, name in names.items() if name is not None}


_SWITCHES = {"enabled": True, "disabled": False}
