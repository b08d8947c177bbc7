"""Writing manifests: which files belong to a pass, and what is recorded of it."""

import shutil
import sys
from pathlib import Path

import pytest

from genai_server import __version__
from genai_server.engine.profiling.folder import wait_for_next_file_name
from genai_server.engine.profiling.manifest import ProfileManifest, about_engine
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest
from genai_server.options.device import DeviceOptions
from genai_server.profiles.manifest import Manifest, Session, find_manifests

PROMPT = [1, 2, 3]


class Writer:
    """A manifest with one sequence, whose passes write files like ONNX Runtime's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = ProfileManifest(folder, Session(id="", prefix="", started=0, model="demo"))
        self.sequence = Sequence(0, (0, 0), GenerationRequest("mine", PROMPT, 10, 20), lambda: 0.0)
        self.sequence.profile.active = "slow"

    def run(self, *names: str, num_tokens: int | None = None, content: str = "[]") -> None:
        """A pass that reads these or all unread tokens, and writes files."""
        self.manifest.before_step(self.sequence)
        for name in names:
            (self.folder / name).write_text(content, encoding="utf-8")
        self.sequence.num_read += num_tokens or self.sequence.num_unread
        self.manifest.after_step(self.sequence)
        wait_for_next_file_name()
        if self.sequence.num_unread == 0:
            self.sequence.append(9)

    def read(self) -> Manifest:
        """The only manifest."""
        (found,) = find_manifests(self.folder)
        return found


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def test_each_file_has_the_token_that_its_pass_went_for(writer: Writer) -> None:
    writer.run("slow_1.json", num_tokens=2)
    writer.run("slow_2.json")
    writer.run("slow_3.json")
    found = [(each.file, each.phase, each.token, each.position, each.num_tokens) for each in writer.read().passes]
    assert found == [
        ("slow_1.json", "prefill", 0, 0, 2),
        ("slow_2.json", "prefill", 0, 2, 1),
        ("slow_3.json", "decode", 1, 3, 1),
    ]
    assert {each.request_id for each in writer.read().passes} == {"mine"}
    assert all(each.seconds > 0 and each.cpu_seconds >= 0 for each in writer.read().passes)


def test_a_pass_that_leaves_several_files_has_a_line_for_each(writer: Writer) -> None:
    writer.run("slow_1.json", "slow_2.json")
    assert [each.token for each in writer.read().passes] == [0, 0]


def test_older_and_other_files_are_not_the_passes(writer: Writer) -> None:
    (writer.folder / "old.json").write_text("[]", encoding="utf-8")
    writer.run("slow_1.json", "notes.txt")
    assert [each.file for each in writer.read().passes] == ["slow_1.json"]


def test_file_of_a_failed_pass_is_not_the_next_passes(writer: Writer) -> None:
    writer.manifest.before_step(writer.sequence)
    (writer.folder / "slow_1.json").write_text("[]", encoding="utf-8")
    writer.run("slow_2.json")
    assert [each.file for each in writer.read().passes] == ["slow_2.json"]


def test_session_starts_with_its_first_file_and_common_data(writer: Writer) -> None:
    writer.run()
    assert find_manifests(writer.folder) == []
    writer.run("slow_1.json")
    session = writer.read().session
    assert (session.model, session.prefix) == ("demo", "slow")
    assert session.id.startswith("slow_")
    assert writer.read().end is None


def test_a_session_ends_once_and_the_next_file_begins_another(writer: Writer) -> None:
    writer.run("slow_1.json")
    writer.manifest.end("slow", "enough")
    writer.manifest.end("slow")
    end = writer.read().end
    assert end is not None
    assert end.reason == "enough"
    writer.run("slow_2.json")
    assert [[each.file for each in found.passes] for found in find_manifests(writer.folder)] == [
        ["slow_1.json"],
        ["slow_2.json"],
    ]


def test_only_sessions_with_other_prefixes_end(writer: Writer) -> None:
    writer.run("slow_1.json")
    writer.sequence.profile.active = "other"
    writer.run("other_1.json")
    assert len(writer.manifest.open_sessions) == 2
    writer.manifest.end_others({"other"})
    ended = {found.session.prefix: found.end is not None for found in find_manifests(writer.folder)}
    assert ended == {"slow": True, "other": False}


@pytest.mark.parametrize("content", ["", '[{"name": "a", "ts'])
def test_incomplete_profile_file_raises_an_error(writer: Writer, content: str) -> None:
    with pytest.raises(OSError, match=r"could not write slow_1\.json"):
        writer.run("slow_1.json", content=content)
    assert [each.file for each in writer.read().passes] == ["slow_1.json"]


def test_a_folder_that_an_operator_has_removed_harms_no_pass(writer: Writer) -> None:
    writer.run("slow_1.json")
    shutil.rmtree(writer.folder)
    writer.run()
    writer.manifest.end("slow")
    assert not writer.folder.exists()


def test_manifest_has_the_engines_model_threads_and_versions(tmp_path: Path) -> None:
    about = about_engine("cpu", tmp_path / "demo", 0)
    assert (about.device, about.model) == ("cpu", "demo")
    assert about.threads == about.cores >= 1
    assert about_engine("cpu", tmp_path, 7).threads == 7
    assert about.spins
    assert about.versions["genai-server"] == __version__
    assert {"onnxruntime", "onnxruntime-genai", "python"} <= set(about.versions)


def test_threads_of_a_session_are_those_of_its_options(tmp_path: Path) -> None:
    entries = {"session.intra_op.allow_spinning": "0"}
    about = about_engine("cpu", tmp_path, 7, DeviceOptions(session={"intra_op_num_threads": "3"}, entries=entries))
    assert (about.threads, about.spins) == (3, False)


def test_version_of_a_duplicate_library_is_the_imported_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("first", "9.9.1"), ("second", "9.9.2")):
        metadata = tmp_path / folder / f"onnxruntime_x-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: onnxruntime-x\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    assert about_engine("cpu", tmp_path, 1).versions["onnxruntime-x"] == "9.9.1"
