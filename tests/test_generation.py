"""What is read from a model directory's genai_config.json."""

from typing import Any

import pytest

from genai_server.generation import Sampling, model_info


def _config(search: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"model": {"context_length": 512, "vocab_size": 1000, "eos_token_id": 2} | model}
    return config if search is None else config | {"search": search}


def test_a_single_end_token_and_a_list_of_them_are_both_understood() -> None:
    assert model_info(_config(eos_token_id=7)).eos_token_ids == [7]
    assert model_info(_config(eos_token_id=[7, 9])).eos_token_ids == [7, 9]


def test_the_end_token_zero_is_a_token() -> None:
    assert model_info(_config(eos_token_id=0)).eos_token_ids == [0]


def test_lengths_are_those_of_the_file() -> None:
    info = model_info(_config())
    assert (info.context_length, info.vocab_size) == (512, 1000)


def test_a_model_that_samples_gives_its_values_as_defaults() -> None:
    search = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
    }
    assert model_info(_config(search)).defaults == Sampling(0.6, 20, 0.95, 0.1, 1.1, None)


def test_a_model_that_does_not_sample_is_greedy_whatever_its_temperature() -> None:
    assert model_info(_config({"do_sample": False, "temperature": 0.6})).defaults.temperature == 0.0
    assert model_info(_config({"temperature": 0.6})).defaults.temperature == 0.0


def test_a_model_that_samples_without_a_temperature_has_one_of_one() -> None:
    assert model_info(_config({"do_sample": True})).defaults == Sampling(temperature=1.0)


def test_a_file_without_search_section_is_greedy_without_filters() -> None:
    assert model_info(_config()).defaults == Sampling()


@pytest.mark.parametrize("missing", ["context_length", "vocab_size", "eos_token_id"])
def test_a_missing_value_of_the_model_is_named(missing: str) -> None:
    config = _config()
    del config["model"][missing]
    with pytest.raises(KeyError, match=missing):
        model_info(config)


def test_a_missing_model_section_is_named() -> None:
    with pytest.raises(KeyError, match="model"):
        model_info({"search": {}})
