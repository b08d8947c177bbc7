"""The keys of the API."""

from pathlib import Path

import pytest

from genai_server.cli import main
from genai_server.config.sources import load_settings
from genai_server.errors import ConfigurationError
from genai_server.http.api_keys import Access, ApiKeys, hash_key, line_of, load_keys, make_key

KEY = "0123456789abcdef"


def keys(**environ: str) -> ApiKeys:
    return load_keys(load_settings(environ=environ, dotenv=None))


def keys_of(folder: Path, content: str | bytes) -> ApiKeys:
    """The keys of a file with this content."""
    (folder / "keys").write_bytes(content if isinstance(content, bytes) else content.encode())
    return keys(GENAI_API_KEY_FILE=str(folder / "keys"))


def test_key_is_not_required_if_none_is_configured_but_with_an_empty_file(tmp_path: Path) -> None:
    assert (keys().required, keys().find("")) == (False, None)
    assert keys_of(tmp_path, "").required


def test_keys_of_the_list_have_names_or_numbers() -> None:
    found = keys(GENAI_API_KEYS=f" ann:{KEY}1, {KEY}2 ,")
    assert found.required
    assert [key.name for n in (1, 2) if (key := found.find(f"{KEY}{n}"))] == ["ann", "key-2"]
    assert found.find(KEY) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("short", "at least 16 characters"),
        (f"ann:{KEY} x", "visible ASCII"),
        (f"ann:{KEY}é", "visible ASCII"),
        (f"a/b:{KEY}", "the name of entry 1"),
        (f":{KEY}", "the name of entry 1"),
        (f"a:b:{KEY}", "the name of entry 1"),
        (f"ann:{KEY},ann:{KEY}2", "two API keys have the name ann"),
    ],
)
def test_a_wrong_list_is_refused_without_showing_a_key(given: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        keys(GENAI_API_KEYS=given)
    assert KEY not in raised.value.message
    assert "short" not in raised.value.message


def test_a_file_has_names_hashes_and_limits(tmp_path: Path) -> None:
    limits = "rate=60 concurrent=2 thinking_budget=0 priority=absolute"
    ann_line, bob_line = line_of("ann", KEY), line_of("bob", KEY + "b")
    assert KEY not in ann_line
    ann, bob = found = keys_of(tmp_path, f"# all of them\n\n{ann_line} {limits}\n  {bob_line}  # x\n")
    assert [found.find(key) for key in (KEY, KEY + "b")] == [ann, bob]
    assert (ann.name, ann.concurrent, ann.rate, ann.thinking_budget, ann.digest) == ("ann", 2, 60, 0, hash_key(KEY))
    assert (bob.name, bob.concurrent, bob.rate, bob.thinking_budget) == ("bob", None, None, None)
    # Where no key is needed, all requests are one tenant, among which priority counts anyway.
    accesses = [Access(ann, digest=ann.digest), Access(is_admin=True, digest=b"admin"), Access(bob, digest=bob.digest)]
    assert [access.has_absolute_priority for access in accesses] == [True, True, False]
    assert not Access(is_admin=True).has_absolute_priority
    assert not Access().has_absolute_priority


@pytest.mark.parametrize(
    "line",
    [
        *[f"ann {KEY}", f"a/b sha256:{'0' * 64}", f"ann sha256:{'0' * 63}"],
        *(f"ann sha256:{'0' * 64} {limit}" for limit in ("speed=9", "priority=5", "thinking_budget=-1")),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError, match="line 2 must be NAME sha256:HASH"):
        keys_of(tmp_path, f"\n{line}\n")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="GENAI_API_KEY_FILE=.*cannot be read: .*No such file"):
        keys(GENAI_API_KEY_FILE=str(tmp_path / "keys"))
    with pytest.raises(ConfigurationError, match="GENAI_API_KEY_FILE=.*cannot be read: .*not UTF-8"):
        keys_of(tmp_path, b"\xff")


def test_the_command_makes_a_key_and_the_line_that_knows_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["key", "ann"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    found = keys_of(tmp_path, second.partition(": ")[2]).find(first.split()[-1])
    assert found is not None
    assert found.name == "ann"


def test_the_command_appends_lines_with_limits_to_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert main(["key", "ann", "--append", str(file)]) == 0
    file.write_text(file.read_text().rstrip("\n"))
    assert main(["key", "bob", "--append", str(file), "--concurrent", "1", "--rate", "30"]) == 0
    said = capsys.readouterr().out
    assert "sha256:" not in said
    ann, bob = (line.split()[-1] for line in said.splitlines() if line.startswith("key, for"))
    found = keys(GENAI_API_KEY_FILE=str(file))
    assert [(key.name, key.concurrent, key.rate) for key in found] == [("ann", None, None), ("bob", 1, 30)]
    assert [found.find(key) for key in (ann, bob)] == [*found]
    assert file.stat().st_mode & 0o077 == 0


def test_the_command_appends_nothing_that_breaks_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    append = ["--append", str(file)]
    assert main(["key", "ann", *append]) == 0
    before = file.read_text()
    for arguments, said in (
        (["ann", *append], f"{file} has a key of the name ann already"),
        (["bob", *append, "--rate", "1000000"], "at most 6 digits; given rate=1000000"),
        (["bob", "--append", str(tmp_path)], ""),
        (["ann b"], "must have 1 to 64 letters, digits"),
    ):
        assert main(["key", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert file.read_text() == before
    file.write_text("nonsense\n")
    assert main(["key", "bob", *append]) == 2
    assert file.read_text() == "nonsense\n"


def test_made_keys_differ_and_are_long() -> None:
    assert len({make_key() for _ in range(100)}) == 100
    assert len(make_key()) > 40
