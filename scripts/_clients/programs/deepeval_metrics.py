"""DeepEval: this server as the judge of its metrics."""

from deepeval.metrics import GEval
from deepeval.models import LocalModel
from deepeval.test_case import LLMTestCase, SingleTurnParams

from _clients.programs.checks import ANSWER, MODEL, PARIS, URL, City, check, equal, run

model = LocalModel(model=MODEL, base_url=f"{URL}/v1", api_key="none")


@check("generate")
def _generate() -> None:
    equal(model.generate("say hello")[0], "hello")


@check("a class")
def _class() -> None:
    equal(model.generate(ANSWER, schema=City)[0], PARIS)


@check("GEval")
def _judge() -> None:
    metric = GEval(
        name="Correctness",
        evaluation_steps=["Compare the two."],
        evaluation_params=[SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT],
        model=model,
        async_mode=False,
    )
    verdict = 'say {"score": 10, "reason": "It is right."}'
    metric.measure(LLMTestCase(input=f"\nscript: {verdict}\n", actual_output="hello"), _show_indicator=False)
    equal((metric.score, metric.reason), (1.0, "It is right."))


run()
