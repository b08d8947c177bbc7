"""Rules for the engine about the reasoning of an answer: how it begins and ends, and how many tokens it may have.

A budget is the request's own, or else that of its API key, or else the model's.
"""

from genai_server.errors import InvalidField
from genai_server.generation.dependencies import RequestContext
from genai_server.generation.output_spec import reasoning_state
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.messages.generation_request import ThoughtRules
from genai_server.text.answers.reasoning import ReasoningState
from genai_server.text.codec import TextCodec

_BUDGET, _MESSAGE = "thinking_token_budget", "reasoning_budget_message"
# The value of a budget for any number of tokens.
_NO_LIMIT = -1
# The budgets of efforts, for templates that know none. Others have no limit.
_BUDGETS = {"minimal": 512, "low": 1024, "medium": 4096}


def with_default_budget(body: ChatParameters, default: int | None, codec: TextCodec) -> ChatParameters:
    """The body with a token budget for reasoning. A body that has a budget already, or whose model does not reason, is
    returned unchanged.

    If the body's reasoning effort sets the budget, because the chat template does not read efforts, the efforts
    `minimal`, `low` and `medium` have budgets of their own. Otherwise the budget is `default` tokens; None sets no
    budget.
    """
    if body.thinking_token_budget is not None or codec.dialect.reasoning is None:
        return body
    if body.effort_is_budget and not codec.writer.thinking.efforts:
        default = _BUDGETS.get(body.reasoning_effort or "", default)
    return body if default is None else body.model_copy(update={_BUDGET: default})


async def reasoning_rules(
    body: ChatParameters, codec: TextCodec, prompt: list[int], context: RequestContext
) -> ThoughtRules | None:
    """The rules by which the engine finds and ends the reasoning of an answer to this prompt; None if the format of the
    model's reasoning is unknown.

    With an unknown format a budget has no effect: it is left out of lenient requests, and otherwise refused with
    InvalidField. InvalidField is also raised if `reasoning_budget_message`, the text that ends reasoning beyond the
    budget, contains the marker that ends reasoning.
    """
    reasoning, budget, message = codec.dialect.reasoning, body.thinking_token_budget, body.reasoning_budget_message
    if reasoning is None:
        for name, value in ((_BUDGET, budget), (_MESSAGE, message)):
            if value not in (None, 0, _NO_LIMIT) and not context.leniency.leave_out(name):
                raise InvalidField(name, "has no effect with this model, whose reasoning has no known format")
        return None
    said: list[int] = []
    if message:
        if reasoning.closing in message:
            raise InvalidField(_MESSAGE, f"must not have {reasoning.closing}, which ends reasoning", given=message)
        said = await codec.encode_text(
            message, add_special=False, parse_special=False, param=_MESSAGE, owner=context.owner
        )
    written = codec.writer.traits(with_tools=bool(body.tools)).reasoning_end
    return ThoughtRules(
        reasoning.opening_pattern,
        reasoning.closing_pattern,
        is_open=reasoning_state(body, codec, prompt) is ReasoningState.INSIDE,
        are_several=reasoning.thoughts_recur,
        end=[*said, *codec.tokenizer.encode(reasoning.end(written))],
        later_end=codec.tokenizer.encode(reasoning.later_end(written)),
        budget=None if budget == _NO_LIMIT else budget,
    )
