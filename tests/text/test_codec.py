"""A model's text side as one."""

import asyncio
from pathlib import Path

import pytest

from genai_server.errors import InvalidField, ModelDirectoryError
from genai_server.text.chat_template import ChatTemplate
from genai_server.text.codec import TextCodec, load_text_codec
from genai_server.text.tokenizer import ByteTokenizer


def test_messages_go_through_the_template_to_token_ids() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", {"bos_token": "^"}
    )
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "ü"}]
    codec = TextCodec(template, ByteTokenizer())
    assert asyncio.run(codec.encode_chat(messages)) == list("^system:s;user:ü;".encode())


def test_a_refusal_of_the_template_reaches_the_caller() -> None:
    codec = TextCodec(ChatTemplate("{{ raise_exception('no') }}", {}), ByteTokenizer())
    with pytest.raises(InvalidField, match="no"):
        asyncio.run(codec.encode_chat([{"role": "user", "content": "x"}]))


def test_each_answer_has_a_decoder_of_its_own() -> None:
    codec = TextCodec(ChatTemplate("", {}), ByteTokenizer())
    first, second = codec.decoder(), codec.decoder()
    first.decode([0xC3])
    assert second.decode([97]) == "a"
    assert first.decode([0xA9]) == "é"


@pytest.mark.parametrize("device", ["scripted", "scripted:1"])
def test_the_scripted_device_needs_no_model_directory(tmp_path: Path, device: str) -> None:
    codec = load_text_codec(tmp_path / "nowhere", device)
    assert asyncio.run(codec.encode_chat([{"role": "user", "content": "count 3"}])) == list(b"count 3\n\x04")


def test_any_other_device_needs_the_models_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelDirectoryError, match="no chat template"):
        load_text_codec(tmp_path, "cpu")
