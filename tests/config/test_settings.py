"""The settings: invalid values and derived values."""

import re

import pytest

from genai_server.config.setting_form import option
from genai_server.config.sources import load_settings
from genai_server.errors import ConfigurationError, quoted
from tests.given_settings import given


def test_a_body_has_room_for_the_most_photos() -> None:
    def in_base64(num_bytes: int) -> int:
        return num_bytes * 4 // 3

    settings = given()
    photos = settings.max_media * in_base64(4_000_000)
    assert max(photos, in_base64(settings.max_media_bytes)) < settings.max_media_body_bytes
    assert 2 * settings.max_media_body_bytes < settings.max_bodies_bytes


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("port", 0, 65535),
        ("workers", 1, 64),
        ("max_length", 1, None),
        ("max_batch_size", 1, 1024),
        ("max_queue", 0, None),
        ("prefill_chunk", 0, None),
        ("threads", 0, 1024),
        ("max_body_bytes", 1, None),
        ("profile_max_files", 1, None),
        ("profile_max_bytes", 1, None),
    ],
)
def test_a_number_is_taken_up_to_its_bounds_and_refused_beyond(name: str, lowest: int, highest: int | None) -> None:
    assert getattr(given(**{name: str(lowest)}), name) == lowest
    refused = [lowest - 1]
    if highest is not None:
        assert getattr(given(**{name: str(highest)}), name) == highest
        refused.append(highest + 1)
    for value in refused:
        with pytest.raises(ConfigurationError, match=f'^{option(name)}="{value}": '):
            given(**{name: str(value)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "eighty"),
        ("reload", "perhaps"),
        ("log_level", "INFO"),
        ("model_name", "-starts-with-a-dash"),
        ("model_name", "two words"),
        ("model_name", "x" * 129),
        ("device", "CPU"),
        ("device", "cuda:"),
        ("device", "cuda:x"),
        ("device", "cpu,"),
        ("device", "gpu"),
        ("device", "cpu;cuda"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        given(**{name: value})
    assert caught.value.message.startswith(f"{option(name)}={quoted(value, limit=1000)}: ")


def test_devices_keep_their_order_and_lose_their_blanks() -> None:
    settings = given(device=" cuda:1 , cpu,cuda:0")
    assert settings.devices == ["cuda:1", "cpu", "cuda:0"]
    assert settings.device == "cuda:1,cpu,cuda:0"


def test_the_admin_key_is_not_shown_with_the_settings() -> None:
    settings = given(admin_api_key="s3cret")
    assert settings.admin_api_key == "s3cret"
    assert "s3cret" not in repr(settings) + str(settings)


@pytest.mark.parametrize(
    ("hosts", "is_loopback"),
    [
        (["127.0.0.1", "127.1.2.3", "::1", "localhost"], True),
        (["0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "127.example.com", "1127.0.0.1"], False),
    ],
)
def test_a_loopback_address_is_reachable_from_this_machine_only(hosts: list[str], is_loopback: bool) -> None:
    assert {given(host=host).on_loopback for host in hosts} == {is_loopback}


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("./models/demo", "demo"),
        ("/srv/Phi-4 mini/", "Phi-4mini"),
        ("/srv/a/..", "srv"),
        ("/srv/_q_1", "q_1"),
        ("/srv/模型-7b", "7b"),
        ("/srv/(.b", "b"),
        ("/", "model"),
    ],
)
def test_unnamed_model_has_the_name_of_its_directory(directory: str, name: str) -> None:
    assert given(model_dir=directory).served == {name: directory}
    assert given(model_name="a", model_dir=directory).served == {"a": directory}


def test_adapters_belong_to_the_first_or_the_named_model() -> None:
    found = given(models="small=./small, big/1=/b=2", adapters="law=./law.a, big/1:law=/srv/b=2.a,small:chess=c.a")
    assert found.served == {"small": "./small", "big/1": "/b=2"}
    assert found.adapter_files("small") == {"law": "./law.a", "chess": "c.a"}
    assert found.adapter_files("big/1") == {"law": "/srv/b=2.a"}
    assert given().adapter_files("demo") == {}
    assert given(adapters="demo:law=./a").adapter_files("demo") == {"law": "./a"}


def test_draft_models_belong_to_the_first_or_the_named_model() -> None:
    found = given(models="small=./small,big=./big", draft_model="big=./small")
    assert [found.draft_model_of(name) for name in found.served] == ["", "./small"]
    assert given(draft_model="./small", model_name="big").draft_model_of("big") == "./small"
    assert given(model_name="big").draft_model_of("big") == ""
    assert given(draft_model="./small", model_name="big", speculation="off").draft_model_of("big") == ""


def test_chat_templates_belong_to_the_first_or_the_named_model() -> None:
    found = given(models="small=./small,big/1=./big", chat_template="chatml, big/1=/srv/b=2.jinja")
    assert [found.chat_template_of(name) for name in found.served] == ["chatml", "/srv/b=2.jinja"]
    assert given(chat_template="./a.jinja").chat_template_of("demo") == "./a.jinja"
    assert given().chat_template_of("demo") == ""
    only_second = given(models="small=./small,big=./big", chat_template="big=alpaca")
    assert [only_second.chat_template_of(name) for name in only_second.served] == ["", "alpaca"]


def test_budgets_of_reasoning_are_those_of_all_models_or_of_the_named_one() -> None:
    found = given(models="small=./small,big=./big", thinking_budget="4096,big=0")
    assert [found.thinking_budget_of(name) for name in (*found.served, "pulled")] == [4096, 0, 4096]
    assert given(models="small=./small,big=./big", thinking_budget="big=7").thinking_budget_of("small") is None
    assert given().thinking_budget_of("demo") is None


def test_aliases_are_names_of_served_models() -> None:
    found = given(models="small=./small,big/1=./big", model_aliases="gpt-4o=big/1, qwen3:4b=small,*=small")
    assert found.aliases == {"gpt-4o": "big/1", "qwen3:4b": "small", "*": "small"}
    assert given(model_aliases="gpt-4o=demo").aliases == {"gpt-4o": "demo"}
    assert given().aliases == {}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("device", "cpu,tpu", 'unknown device "tpu"; known are cpu, cuda, tensorrt'),
        ("device", "cpu, cpu", "twice"),
        ("adapters", "law", '"law" is not an adapter with its file, such as law=./law.onnx_adapter'),
        ("adapters", "law=", '"law" is not an adapter with its file'),
        ("adapters", "../law=./a", '"../law" is not an adapter with its file'),
        ("adapters", "a:b:law=./a", '"a:b:law" belongs to a model that is not served'),
        ("adapters", "other:law=./a", '"other:law" belongs to a model that is not served'),
        ("adapters", "law=./a,law=./b", "an adapter is named twice"),
        ("adapters", "law=./a,demo:law=./b", "an adapter is named twice"),
        ("draft_model", "other=./small", '"other=./small" is for a model that is not served'),
        ("draft_model", "demo=", '"demo=" is not the directory of a draft model'),
        ("draft_model", "./a,demo=./b", "a model has two draft models"),
        ("thinking_budget", "other=5", '"other" is a model that is not served'),
        ("thinking_budget", "much", '"much" is not a number of tokens'),
        ("thinking_budget", "-1", '"-1" is not a number of tokens'),
        ("thinking_budget", "5,6", "a model has two budgets"),
        ("chat_template", "other=chatml", '"other=chatml" is for a model that is not served'),
        ("chat_template", "demo=", '"demo=" is not a chat template, such as chatml, ./chat.jinja or big=chatml'),
        ("chat_template", "chatml,", '"" is not a chat template'),
        ("chat_template", "chatml,demo=gemma", "a model has two chat templates"),
        ("model_aliases", "gpt-4o=other", '"gpt-4o" is an alias of "other", a model that is not served'),
        ("model_aliases", "*=other", '"*" is an alias of "other", a model that is not served'),
        ("model_aliases", "gpt-4o", '"gpt-4o" is not an alias with its model, such as gpt-4o=big'),
        ("model_aliases", "gpt*=demo", '"gpt*" is not an alias with its model'),
        ("model_aliases", "demo=demo", '"demo" is the name of a model'),
        ("model_aliases", "a=demo,a=demo", "an alias is named twice"),
        ("models", "./models/demo", '"./models/demo" is not a model with its directory'),
        ("models", "a=", '"a" is not a model with its directory'),
        ("models", "a b=/x", '"a b" is not a model with its directory'),
        ("models", "a=/x,a=/y", "a model is named twice"),
    ],
)
def test_invalid_entry_is_refused_with_the_reason(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(reason)):
        given(**{name: value})


@pytest.mark.parametrize("name", ["max_length", "max_models"])
def test_a_wrong_number_is_refused_with_the_word_for_it(name: str) -> None:
    assert getattr(load_settings({name: "auto"}, environ={}, dotenv=None), name) == "auto"
    assert getattr(load_settings({name: "7"}, environ={}, dotenv=None), name) == 7
    for value in ("-1", "many"):
        with pytest.raises(ConfigurationError, match="^--max-.*must be .*, or auto$"):
            load_settings({name: value}, environ={}, dotenv=None)


def test_prepared_files_have_space_for_recordings_and_images() -> None:
    assert given().prepared_bytes == 8 * 7200 * 32_000
    assert given(max_audio_seconds="60").prepared_bytes == 4 * 16_384 * 28_000
    few = given(max_audio_seconds="60", max_media_tokens="100")
    assert (few.prepared_bytes, few.prepared_bytes_per_request) == (8 * 60 * 32_000, 2 * 60 * 32_000)
    assert given(max_audio_seconds="60", max_prepared_bytes="7680000").prepared_bytes_per_request == 60 * 32_000
    with pytest.raises(ConfigurationError, match="at least 7680000, four times what a recording"):
        given(max_audio_seconds="60", max_prepared_bytes="7679999")
