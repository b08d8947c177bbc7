"""Which files of a repository form a model, and the errors if none or several do."""

from collections.abc import Sequence

import pytest

from genai_server.errors import PullFailed
from genai_server.hub.repository import (
    RemoteFile,
    Repository,
    Selection,
    could_be_repository,
    is_repository_name,
    select_gguf,
    select_model,
    select_pooling,
    select_source,
    with_tokenizer,
)
from genai_server.hub.short_names import SHORT_NAMES


def repository(*paths: str) -> Repository:
    return Repository("org/name", "c" * 40, tuple(RemoteFile(path, 1 << 30, "git:0") for path in paths))


def refusal(paths: tuple[str, ...], *include: str) -> str:
    with pytest.raises(PullFailed) as caught:
        select_model(repository(*paths), include)
    return caught.value.message


ONE = ("README.md", "cpu/int4/genai_config.json", "cpu/int4/model.onnx", "cpu/other.txt")
TWO = (*ONE, "cuda/genai_config.json", "cuda/model.onnx")


IMAGES = (
    "genai_config.json",
    "model.onnx",
    "vision.onnx",
    "vision.onnx.data",
    "embedding.onnx",
    "processor_config.json",
)


@pytest.mark.parametrize(
    ("paths", "folder", "files"),
    [
        (ONE, "cpu/int4", {"genai_config.json", "model.onnx"}),
        # A model for images has all of its graphs.
        (("README.md", *(f"cpu/{file}" for file in IMAGES)), "cpu", {*IMAGES}),
        # A model at the top excludes those in folders.
        (("genai_config.json", "model.onnx", *TWO[4:]), "", {"genai_config.json", "model.onnx"}),
        # Hidden files are left out.
        (("genai_config.json", ".gitattributes"), "", {"genai_config.json"}),
    ],
)
def test_the_only_model_is_taken_without_its_folder(paths: tuple[str, ...], folder: str, files: set[str]) -> None:
    selection = select_model(repository(*paths))
    assert (selection.folder, {*selection.files}, selection.size) == (folder, files, len(files) << 30)


def test_choice_of_several_models_is_required_and_lists_sizes() -> None:
    message = refusal(TWO)
    assert "  org/name:cpu/int4  (2.00 GiB)" in message
    assert "  org/name:cuda  (2.00 GiB)" in message


@pytest.mark.parametrize("pattern", ["cuda/*", "cuda/", "cu*"])
def test_a_pattern_chooses(pattern: str) -> None:
    assert select_model(repository(*TWO), [pattern]).folder == "cuda"


@pytest.mark.parametrize(
    ("paths", "include", "words"),
    [
        (TWO, ["none/*"], "no file of org/name matches --include none/*"),
        (TWO, ["*.md"], "no genai_config.json among the files that --include names"),
        (("config.json", "model.safetensors"), [], "genai-server export org/name builds one"),
        *(
            (("genai_config.json", path), [], "would be written outside the directory")
            for path in ("../evil", "a/../../evil", "C:/evil")
        ),
    ],
)
def test_what_is_no_model_is_refused(paths: tuple[str, ...], include: list[str], words: str) -> None:
    assert words in refusal(paths, *include)


SOURCE = ("config.json", "model.safetensors", "tokenizer.json")
POOLING = ("modules.json", "1_Pooling/config.json")


@pytest.mark.parametrize(
    ("files", "others"),
    [
        (SOURCE, ["pytorch_model.bin", "original/x.json", "logo.png"]),
        (("config.json", *POOLING, "2_Dense/model.safetensors"), ["onnx/model.onnx"]),
    ],
)
def test_a_source_has_what_the_builder_reads_at_the_top_and_its_modules(
    files: tuple[str, ...], others: list[str]
) -> None:
    assert {*select_source(repository(*files, *others)).files} == {*files}
    with pytest.raises(PullFailed, match=r"has no config\.json"):
        select_source(repository("model.safetensors"))


@pytest.mark.parametrize(
    ("text", "is_name"),
    [("a/b", True), ("gpt2", True), ("a/b.c-d_e", True), ("a/b/c", False), ("../a", False), ("", False)],
)
def test_names_have_an_owner_and_a_name(text: str, is_name: bool) -> None:
    assert is_repository_name(text) is is_name


ENCODER = ("config.json", "tokenizer.json", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_int8.onnx", *POOLING)


def test_plain_graph_of_an_encoder_is_chosen_with_its_files_unless_a_pattern_names_another() -> None:
    expected = {"config.json", "tokenizer.json", "onnx/model.onnx", "onnx/model.onnx_data", *POOLING}
    assert {*select_model(repository(*ENCODER, "pytorch_model.bin", "openvino/model.xml")).files} == expected
    found = select_model(repository(*ENCODER), ["onnx/model_int8.onnx"]).files
    assert {"onnx/model_int8.onnx", "config.json", *POOLING} <= {*found}
    assert "onnx/model.onnx" not in found


def test_weights_of_a_graph_may_have_any_name() -> None:
    others = ("onnx/model_fp16.onnx_data", "onnx/tokenizer.json", "onnx/Constant_7_attr__value")
    found = select_model(repository(*ENCODER, "onnx/model_fp16.onnx", *others)).files
    expected = {"onnx/model.onnx", "onnx/model.onnx_data", "onnx/Constant_7_attr__value"}
    assert {name for name in found if name.startswith("onnx/")} == expected


def test_several_graphs_of_an_encoder_are_named_with_their_size() -> None:
    graphs = ("config.json", "onnx/model_fp16.onnx", "onnx/model_int8.onnx")
    assert "  org/name:onnx/model_int8.onnx  (1.00 GiB)" in refusal(graphs)
    assert "org/name has several graphs; choose one" in refusal(ENCODER, "onnx/*")


def test_pooling_files_are_selected_only_if_complete() -> None:
    assert set(select_pooling(repository(*ENCODER, "README.md")).files) == set(POOLING)
    assert not select_pooling(repository("config.json", "1_Pooling/config.json")).files


GGUF = (
    "README.md",
    "config.json",
    "a-Q4_K_M.gguf",
    "big/a-F16.gguf",
    "mmproj-a.gguf",
    "a.imatrix.gguf",
    "tokenizer.json",
)


def test_several_gguf_files_are_listed_with_their_sizes_and_one_is_chosen_by_its_pattern() -> None:
    found = repository(*GGUF)
    chosen = select_gguf(found, ["*F16*"])
    assert chosen is not None
    assert chosen.path == "big/a-F16.gguf"
    assert sorted(with_tokenizer(found, chosen).files) == ["a-F16.gguf", "tokenizer.json"]
    with pytest.raises(PullFailed) as caught:
        select_gguf(repository(*GGUF))
    assert caught.value.message.splitlines()[1:] == [
        '  --include "a-Q4_K_M.gguf"  (1.00 GiB)',
        '  --include "big/a-F16.gguf"  (1.00 GiB)',
    ]
    with pytest.raises(PullFailed, match="no GGUF file of org/name matches --include"):
        select_gguf(repository(*GGUF), ["*Q8_0*"])


def test_weights_of_pytorch_come_before_gguf_files() -> None:
    found = repository("model.safetensors", "a.gguf")
    assert select_gguf(found) is select_gguf(repository("model.safetensors")) is None
    chosen = select_gguf(found, ["*.gguf"])
    assert chosen is not None
    assert chosen.path == "a.gguf"


PHI_3 = (
    *("cpu_and_mobile/cpu-int4-rtn-block-32", "cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4"),
    *("cuda/cuda-fp16", "cuda/cuda-int4-rtn-block-32", "directml/directml-int4-awq-block-128"),
)
PHI_4 = ("cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4", "gpu/gpu-int4-rtn-block-32")
MISTRAL = (
    "onnx/cpu_and_mobile/mistral-7b-instruct-v0.2-cpu-int4-rtn-block-32-acc-level-4",
    "onnx/cuda/mistral-7b-instruct-v0.2-cuda-int4-rtn-block-32",
    "onnx/directml/mistralai_Mistral-7B-Instruct-v0.2",
)
DISTILLED = tuple(f"deepseek-r1-distill-qwen-{size}/{folder}" for size in ("1.5B", "7B") for folder in PHI_4)


def several(folders: tuple[str, ...]) -> Repository:
    return repository(*(f"{folder}/{name}" for folder in folders for name in ("genai_config.json", "model.onnx")))


@pytest.mark.parametrize(
    ("folders", "device", "expected"),
    [
        (PHI_3, "cpu", "cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4"),
        (PHI_3, "cuda", "cuda/cuda-int4-rtn-block-32"),
        (PHI_3, "directml", "directml/directml-int4-awq-block-128"),
        (PHI_4, "cpu", "cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4"),
        (PHI_4, "cuda", "gpu/gpu-int4-rtn-block-32"),
        (PHI_4, "directml", "gpu/gpu-int4-rtn-block-32"),
        (MISTRAL, "cpu", MISTRAL[0]),
        (MISTRAL, "directml", MISTRAL[2]),
    ],
)
def test_the_variant_for_the_device_is_chosen(folders: tuple[str, ...], device: str, expected: str) -> None:
    assert select_model(several(folders), device=device).folder == expected


def test_of_several_models_the_person_is_asked_for_one_of_those_for_the_device() -> None:
    asked: list[list[str]] = []

    def choose(models: Sequence[Selection]) -> Selection:
        asked.append([model.folder for model in models])
        return models[1]

    chosen = select_model(several(DISTILLED), device="cpu", choose=choose)
    assert asked == [[f"deepseek-r1-distill-qwen-{size}/{PHI_4[0]}" for size in ("1.5B", "7B")]]
    assert chosen.folder == asked[0][1]
    with pytest.raises(
        PullFailed, match="has several models for cpu; choose one:\n  org/name:deepseek-r1-distill-qwen"
    ):
        select_model(several(DISTILLED), device="cpu")
    with pytest.raises(PullFailed, match="has no model for qnn; choose one:\n  org/name:cpu_and_mobile"):
        select_model(several(PHI_4), device="qnn")


def test_short_names_are_those_of_repositories() -> None:
    assert all(is_repository_name(place.partition(":")[0]) for place in SHORT_NAMES.values())
    assert not any(could_be_repository(name) for name in SHORT_NAMES)
    assert len(set(SHORT_NAMES.values())) == len(SHORT_NAMES)
