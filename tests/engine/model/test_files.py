"""A model directory is checked before it is loaded, a draft model by its tokens, too, and errors name the file."""

import functools
import itertools
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest

from genai_server.engine.model.files import (
    NO_AUDIO,
    TEXT_ONLY,
    check_draft_model,
    check_model_directory,
    external_files,
    has_chat_template,
    model_info,
    session_profile,
    unsupported_media_message,
    weight_bytes,
)
from genai_server.errors import ConfigurationError, ModelDirectoryError, quoted
from genai_server.messages.generation_request import Sampling
from genai_server.model_files.config_files import read_mask_token
from tests.model_edits import edited_config
from tests.running_server import DEMO, ROOT

IMAGES = ROOT / "tests" / "built_models" / "qwen-3-vl-images"

CONFIG: dict[str, Any] = {
    "model": {"context_length": 64, "vocab_size": 300, "eos_token_id": 2, "decoder": {"filename": "model.onnx"}}
}


def _graph(*external: Sequence[tuple[str, str]], nested: bool = False) -> bytes:
    """A graph with a tensor for each list of fields of external data, in this order; `nested` in a subgraph."""
    tensors = []
    for fields in external:
        tensor = onnx.TensorProto(name="x", data_type=onnx.TensorProto.FLOAT, data_location=onnx.TensorProto.EXTERNAL)
        for key, value in fields:
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    inner = onnx.helper.make_graph([], "inner", [], [], tensors)
    outer = onnx.helper.make_graph([onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner)], "outer", [], [])
    found: bytes = onnx.helper.make_model(outer if nested else inner).SerializeToString()
    return found


def _external(name: str) -> bytes:
    """A graph with one external file."""
    return _graph([("location", name)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A complete but small model directory."""
    files: dict[str, bytes] = {
        "genai_config.json": json.dumps(CONFIG).encode(),
        "model.onnx": _external("model.onnx.data"),
        "model.onnx.data": b"\0",
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"x",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def _refusal(directory: Path) -> str:
    with pytest.raises(ModelDirectoryError) as caught:
        check_model_directory(directory)
    return caught.value.message


def _configure(directory: Path, **sections: Any) -> None:
    """Replace sections of the configuration's model, such as its decoder."""
    config = {"model": {**CONFIG["model"], **sections}}
    (directory / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")


def _with_options(options: dict[str, Any]) -> dict[str, Any]:
    """A decoder with these session options."""
    return {"filename": "model.onnx", "session_options": options}


def test_complete_directory_describes_its_model(directory: Path) -> None:
    info = check_model_directory(directory)
    assert (info.context_length, info.vocab_size, info.eos_token_ids) == (64, 300, [2])


def test_path_that_is_not_a_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model"
    assert str(path) in _refusal(path)
    path.write_text("", encoding="utf-8")
    assert str(path) in _refusal(path)


@pytest.mark.parametrize(
    "name", ["genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_missing_file_is_named_with_its_directory(directory: Path, name: str) -> None:
    (directory / name).unlink()
    if name == "tokenizer.json":
        (directory / name).mkdir()  # a folder in a file's place does not count
    message = _refusal(directory)
    assert name in message
    assert str(directory) in message


@pytest.mark.parametrize(
    ("config", "expected"), [("{}", False), ('{"chat_template": null}', False), ('{"chat_template": "x"}', True)]
)
def test_directory_without_a_chat_template_is_valid(directory: Path, config: str, *, expected: bool) -> None:
    (directory / "tokenizer_config.json").write_text(config, encoding="utf-8")
    assert has_chat_template(directory)
    (directory / "chat_template.jinja").unlink()
    assert check_model_directory(directory).vocab_size == 300
    assert has_chat_template(directory) is expected


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b'"text"', b"\xff\xfe{}"])
@pytest.mark.parametrize("name", ["genai_config.json", "tokenizer_config.json"])
def test_configuration_that_is_not_a_json_object_is_named(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    assert str(directory / name) in _refusal(directory)


LEFT_OUT = object()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", LEFT_OUT),
        ("model.eos_token_id", LEFT_OUT),
        ("model.decoder", LEFT_OUT),
        ("model.decoder.filename", LEFT_OUT),
        ("model", None),
        ("model.context_length", "long"),
        ("model.context_length", -1),
        ("model.context_length", math.inf),
        ("model.vocab_size", 2**31),
        ("model.eos_token_id", [2, 10**40]),
        ("model.eos_token_id", [300, -1]),
        ("model.eos_token_id", []),
        ("model.eos_token_id", None),
        ("model.decoder", ["model.onnx"]),
        ("search", None),
        ("search", {"do_sample": True, "temperature": None}),
    ],
)
def test_a_missing_key_or_wrong_value_is_refused_with_the_file_name(directory: Path, key: str, value: object) -> None:
    *sections, name = key.split(".")
    with edited_config(directory) as config:
        section: dict[str, Any] = functools.reduce(dict.__getitem__, sections, config)
        section[name] = value
        if value is LEFT_OUT:
            del section[name]
    message = _refusal(directory)
    assert str(directory / "genai_config.json") in message
    assert name in message or value is not LEFT_OUT


# external files


@pytest.mark.parametrize("nested", [False, True])
def test_external_files_are_found_with_their_needed_size(tmp_path: Path, *, nested: bool) -> None:
    graph = _graph(
        [("location", "b.data"), ("offset", "8"), ("length", "4")],
        [("location", "gewicht-é")],
        [("location", "b.data"), ("length", "4")],
        [("location", "folder/c.bin"), ("length", "none")],
        nested=nested,
    )
    (tmp_path / "model.onnx").write_bytes(graph)
    assert external_files(tmp_path / "model.onnx") == {"b.data": 12, "folder/c.bin": 0, "gewicht-é": 0}


FIELDS = {"location": "a.data", "offset": "16", "length": "8", "checksum": "0"}
KEY, VALUE = b"\x0a\x08location", b"\x12\x06a.data"
LIKE_A_REFERENCE = onnx.helper.make_model(
    onnx.helper.make_graph([], "empty", [], []), doc_string="\x0a\x08location\x12\x01a"
).SerializeToString()


EXTERNAL_FILES: dict[str, tuple[bytes, dict[str, int]]] = {
    **{
        " ".join(order): (_graph([(key, FIELDS[key]) for key in order]), {"a.data": 24})
        for order in itertools.permutations(FIELDS)
    },
    "value before its key": (_external("a.data").replace(KEY + VALUE, VALUE + KEY), {"a.data": 0}),
    **{f"name of {n}": (_external("n" * n), {"n" * n: 0}) for n in (1, 10, 13, 127, 128, 300, 4096)},
    "a word in a text": (b"\x08\x07 the word location alone is no reference", {}),
    "nothing": (b"", {}),
    "an end within a reference": (b"\x0a\x08location\x12\x01a", {}),
    "a text like a reference": (LIKE_A_REFERENCE, {}),
}


@pytest.mark.parametrize(("graph", "found"), EXTERNAL_FILES.values(), ids=EXTERNAL_FILES)
def test_fields_of_an_external_file_may_have_any_order_and_length(
    tmp_path: Path, graph: bytes, found: dict[str, int]
) -> None:
    (tmp_path / "model.onnx").write_bytes(graph)
    assert external_files(tmp_path / "model.onnx") == found


# contents of the configuration


def _config(search: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"model": {"context_length": 512, "vocab_size": 1000, "eos_token_id": 2} | model}
    return config if search is None else config | {"search": search}


@pytest.mark.parametrize(("given", "found"), [(7, [7]), (0, [0]), ([7, 9], [7, 9]), ([7, 1000, -1], [7])])
def test_eos_token_id_is_a_number_or_a_list_within_the_vocabulary(given: object, found: list[int]) -> None:
    assert model_info(_config(eos_token_id=given)).eos_token_ids == found


SEARCH = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("search", "defaults"),
    [
        ({"do_sample": True, **SEARCH}, Sampling(0.6, 20, 0.95, 0.1, 1.1, None)),
        ({"do_sample": True}, Sampling(temperature=1.0)),
        (None, Sampling()),
        ({"do_sample": False, "temperature": 0.6}, Sampling()),
        ({"temperature": 0.6}, Sampling()),
    ],
    ids=["all values", "no values", "no section", "no sampling", "greedy by default"],
)
def test_defaults_are_those_of_the_search_section(search: dict[str, Any] | None, defaults: Sampling) -> None:
    assert model_info(_config(search)).defaults == defaults


@pytest.mark.parametrize(
    "name", ["../model.onnx", "/etc/passwd", "a/../../model.onnx", "C:\\model.onnx", "..\\model.onnx"]
)
@pytest.mark.parametrize("section", ["decoder", "encoder"])
def test_a_configuration_that_names_a_file_elsewhere_is_refused(directory: Path, name: str, section: str) -> None:
    (directory.parent / "model.onnx").touch()
    _configure(directory, **{section: {"filename": name}})
    assert "names a file outside the model directory" in _refusal(directory)


@pytest.mark.parametrize("name", ["model\0.onnx", "m" * 5000], ids=["with a null byte", "too long"])
def test_a_name_that_no_file_can_have_is_refused(directory: Path, name: str) -> None:
    _configure(directory, decoder={"filename": name})
    assert str(directory) in _refusal(directory)


@pytest.mark.parametrize(
    "option",
    ["session.collect_node_memory_stats_to_file", "ep.context_file_path", "optimized_model_filepath", "cache_dir"],
)
def test_session_option_with_an_outside_path_is_refused(directory: Path, option: str) -> None:
    options = {option: "/tmp/anywhere", "trt_profile_min_shapes": "input_ids:1x1"}
    _configure(directory, decoder=_with_options(options))
    assert 'outside the model directory: "/tmp/anywhere"' in _refusal(directory)


@pytest.mark.parametrize("name", ["../weights", "/dev/zero", "./" * 90 + "../weights"])
def test_weights_elsewhere_are_refused(directory: Path, name: str) -> None:
    (directory / "model.onnx").write_bytes(_external(name))
    assert "model.onnx names a file outside the model directory" in _refusal(directory)


def test_a_model_directory_brings_no_code(directory: Path) -> None:
    _configure(directory, decoder=_with_options({"custom_ops_library": "ops.so"}))
    assert "names a library to load: custom_ops_library" in _refusal(directory)


def test_duplicate_configuration_key_is_refused(directory: Path) -> None:
    twice = '"session_options": {"custom_ops_library": "ops.so"}, "session_options": {}, "filename"'
    (directory / "genai_config.json").write_text(json.dumps(CONFIG).replace('"filename"', twice))
    assert 'it has "session_options" twice in one object' in _refusal(directory)


@pytest.mark.parametrize("name", ["genai_config.json", "tokenizer_config.json"])
def test_a_file_that_is_nested_without_end_is_refused(directory: Path, name: str) -> None:
    (directory / name).write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    assert f"{name} cannot be read: it is nested too deep" in _refusal(directory)


@pytest.mark.parametrize("prefix", ["/tmp/x", "../x", "a/b", "a\\b", ".x", "x" * 65, True])
@pytest.mark.parametrize("section", ["decoder", "encoder"])
def test_model_directory_cannot_choose_the_profile_path(directory: Path, prefix: object, section: str) -> None:
    _configure(directory, **{section: _with_options({"enable_profiling": prefix})})
    message = _refusal(directory)
    assert re.search("enable_profiling .* must be a name, not a path", message)
    assert quoted(prefix) in message


def test_model_directory_may_name_a_profile_of_the_session(directory: Path) -> None:
    _configure(directory, decoder=_with_options({"enable_profiling": "whole"}))
    check_model_directory(directory)
    assert session_profile(directory) == "whole"


def test_a_file_in_a_folder_of_the_directory_is_fine(directory: Path) -> None:
    (directory / "sub").mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        (directory / name).rename(directory / "sub" / name)
    (directory / "genai_config.json").write_text(json.dumps(CONFIG).replace("model.onnx", "sub/model.onnx"))
    assert check_model_directory(directory).context_length == 64


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
@pytest.mark.parametrize("name", ["model.onnx", "chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_link_out_of_the_directory_is_refused(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    other = tmp_path_factory.mktemp("other") / "secret"
    other.write_bytes(b"")
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(other)
    assert "is a link out of the model directory" in _refusal(directory)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_the_links_of_hugging_faces_cache_are_fine(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("cache")
    (cache / "blobs").mkdir()
    snapshot = cache / "snapshots" / "0123" / "cpu"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(directory.iterdir()):
        file.rename(cache / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../../blobs/{number}")
    assert check_model_directory(snapshot).context_length == 64


def test_a_decoder_with_paged_attention_is_refused_with_the_way_to_rebuild_it(directory: Path) -> None:
    inputs = {"input_ids": "input_ids", "block_table": "block_table"}
    _configure(directory, decoder={**CONFIG["model"]["decoder"], "inputs": inputs})
    assert re.search("block_table.*without use_paged_attention=true", _refusal(directory))


def test_a_model_with_an_encoder_is_refused(directory: Path) -> None:
    _configure(directory, encoder={"filename": "encoder.onnx"})
    assert "of a type for speech that this server does not serve" in _refusal(directory)


_GRAPHS_FOR_IMAGES = {
    "vision": {"filename": "vision.onnx"},
    "embedding": {"filename": "embedding.onnx"},
    "image_token_id": 5,
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "qwen3_vl_text"}, TEXT_ONLY),
        ({"type": "gemma3_text"}, ""),
        ({"type": "llama"}, ""),
        ({"type": "phi4mm", "vision": {}}, TEXT_ONLY),
        ({"type": "phi4mm", "speech": {}}, TEXT_ONLY),
        ({"type": "qwen3_vl", **_GRAPHS_FOR_IMAGES}, ""),
        ({"type": "phi4mm", "speech": {}, **_GRAPHS_FOR_IMAGES}, NO_AUDIO),
        ({"type": "phi3v", **_GRAPHS_FOR_IMAGES}, TEXT_ONLY),
    ],
)
def test_what_is_left_out_follows_from_type_and_sections(directory: Path, fields: dict[str, Any], message: str) -> None:
    _configure(directory, **fields)
    assert unsupported_media_message(directory) == message


def test_folders_with_a_model_below_the_directory_are_named(tmp_path: Path) -> None:
    assert _refusal(tmp_path).endswith("genai_config.json is missing; name the folder that has it")
    folders = [tmp_path / name for name in ("gpu/int4", ".cache/old", "a/b/c/d/e/f")]
    folders += [tmp_path / f"cpu-{number}" for number in range(6)]
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True)
        (folder / "genai_config.json").touch()
        if number == 2:
            assert _refusal(tmp_path).endswith(f"; name the folder that has it: {folders[0]}")
    named = ", ".join(map(str, folders[3:]))
    assert _refusal(tmp_path).endswith(f"; name one of the folders that have it: {named}, and more")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return Path(shutil.copytree(IMAGES, tmp_path / "model"))


@pytest.mark.parametrize("name", ["vision.onnx", "embedding.onnx", "processor_config.json"])
@pytest.mark.parametrize("is_processor_named", [True, False])
def test_a_missing_file_for_images_is_named(images: Path, name: str, is_processor_named: bool) -> None:
    """The processor's file has the library's name by default."""
    if not is_processor_named:
        with edited_config(images) as config:
            del config["model"]["vision"]["config_filename"]
    assert check_model_directory(images).vocab_size == 300
    (images / name).unlink()
    assert f"is incomplete: {name} is missing" in _refusal(images)


def test_an_unknown_token_for_images_is_refused(images: Path) -> None:
    with edited_config(images) as config:
        config["model"]["image_token_id"] = -5
    assert "wrong value for model.image_token_id: -5" in _refusal(images)


def test_the_weights_include_those_for_images() -> None:
    graphs = ("model.onnx", "model.onnx.data", "vision.onnx", "embedding.onnx")
    assert weight_bytes(IMAGES) >= sum((IMAGES / name).stat().st_size for name in graphs)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "draft"))


def _draft_refusal(draft: Path) -> str:
    with pytest.raises(ConfigurationError) as raised:
        check_draft_model(DEMO, draft)
    return raised.value.message


def edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    change(tokenizer)
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def test_model_with_the_same_tokens_can_draft(draft: Path) -> None:
    # Only token ids are read and written, so the rules by which texts are split do not matter.
    edit(draft, lambda tokenizer: tokenizer["model"].update(merges=[]))
    with edited_config(draft) as config:
        config["model"]["vocab_size"] += 64  # padded otherwise
    assert check_draft_model(DEMO, draft).vocab_size == 1920 + 64


def _renamed(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    del vocabulary[next(text for text, id in vocabulary.items() if id == 300)]
    vocabulary["strange"] = 300


def _shorter(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {text: id for text, id in vocabulary.items() if id < 1900}


def _other_end(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][2]["content"] = "</s>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_renamed, 'token 300 is "strange" and not "'),
        (_shorter, "token 1900 is missing and not "),
        (_shorter, "it has 1900 tokens and not 1920"),
        (_other_end, 'special token 2 is "</s>" and not "<|im_end|>"'),
        (lambda tokenizer: tokenizer.pop("model"), "tokenizer.json cannot be read: it has a wrong 'model'"),
    ],
)
def test_other_tokens_are_named(draft: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    edit(draft, change)
    refusal = _draft_refusal(draft)
    assert refusal.startswith(f"{draft}: ")
    assert message in refusal


def test_vocabulary_must_have_all_tokens(draft: Path) -> None:
    with edited_config(draft) as config:
        config["model"]["vocab_size"] = 1000
    assert "1000 tokens (vocab_size), the tokenizer has 1920" in _draft_refusal(draft)


@pytest.mark.parametrize("token", [-1, 1920, "5", 5.0, True, [5]])
def test_mask_token_must_be_one_of_the_draft_models_tokens(draft: Path, token: object) -> None:
    (draft / "config.json").write_text(json.dumps({"pard_token": token}), encoding="utf-8")
    limit = "pard_token is the id of a token, an integer from 0 to 1919"
    assert _draft_refusal(draft) == f"{draft}: {draft / 'config.json'}: {limit}; given {json.dumps(token)}"


def test_mask_token_may_be_unknown_to_the_tokenizer(draft: Path) -> None:
    assert read_mask_token(draft, 1920) is None
    (draft / "config.json").write_text('{"pard_token": 1920}', encoding="utf-8")
    with edited_config(draft) as config:
        config["model"]["vocab_size"] += 64
    assert read_mask_token(draft, check_draft_model(DEMO, draft).vocab_size) == 1920


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("models/none", "does not exist"),
        ("models/demo-embeddings", "it does not generate text"),
        ("models/demo-vision", "special token"),
    ],
)
def test_directories_that_cannot_draft_are_refused(directory: str, message: str) -> None:
    assert message in _draft_refusal(ROOT / directory)


def test_unigram_vocabularies_are_compared(draft: Path) -> None:
    def to_list(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = [[text, 0.0] for text in sorted(vocabulary, key=vocabulary.get)]

    edit(draft, to_list)
    assert check_draft_model(DEMO, draft).vocab_size == 1920
    edit(draft, lambda tokenizer: tokenizer["model"]["vocab"][300].__setitem__(0, "strange"))
    assert 'token 300 is "strange"' in _draft_refusal(draft)
