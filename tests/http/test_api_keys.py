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


def test_key_is_not_required_if_none_is_configured() -> None:
    assert not keys().required
    assert keys().find("") is None


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
    file = tmp_path / "keys"
    file.write_text(
        f"# all of them\n\n{line_of('ann', KEY)} rate=60 concurrent=2\n  {line_of('bob', KEY + 'b')}  # x\n"
    )
    found = keys(GENAI_API_KEY_FILE=str(file))
    ann, bob = found.find(KEY), found.find(KEY + "b")
    assert ann is not None
    assert (ann.name, ann.concurrent, ann.rate, ann.digest) == ("ann", 2, 60, hash_key(KEY))
    assert bob is not None
    assert (bob.name, bob.concurrent, bob.rate) == ("bob", None, None)
    assert KEY not in file.read_text()


def test_a_line_of_the_file_may_give_absolute_priority(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{line_of('ann', KEY)} rate=60 priority=absolute\n{line_of('bob', KEY + 'b')} concurrent=1\n")
    ann, bob = keys(GENAI_API_KEY_FILE=str(file))
    assert (ann.has_absolute_priority, ann.rate, bob.has_absolute_priority) == (True, 60, False)
    assert [Access(key, digest=key.digest).has_absolute_priority for key in (ann, bob)] == [True, False]
    assert Access(is_admin=True, digest=b"admin").has_absolute_priority
    # Where no key is needed, all requests are one tenant, among which priority counts anyway.
    assert not Access(is_admin=True).has_absolute_priority
    assert not Access().has_absolute_priority


def test_a_line_of_the_file_may_give_a_budget_of_reasoning(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{line_of('ann', KEY)} thinking_budget=0 rate=60\n{line_of('bob', KEY + 'b')}\n")
    ann, bob = keys(GENAI_API_KEY_FILE=str(file))
    assert (ann.thinking_budget, ann.rate, bob.thinking_budget) == (0, 60, None)


def test_empty_key_file_accepts_no_key(tmp_path: Path) -> None:
    (tmp_path / "keys").touch()
    assert keys(GENAI_API_KEY_FILE=str(tmp_path / "keys")).required


@pytest.mark.parametrize(
    "line",
    [
        f"ann {KEY}",
        f"a/b sha256:{'0' * 64}",
        f"ann sha256:{'0' * 63}",
        f"ann sha256:{'0' * 64} speed=9",
        f"ann sha256:{'0' * 64} priority=5",
        f"ann sha256:{'0' * 64} thinking_budget=-1",
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"\n{line}\n")
    with pytest.raises(ConfigurationError, match="line 2 must be NAME sha256:HASH"):
        keys(GENAI_API_KEY_FILE=str(tmp_path / "keys"))


@pytest.mark.parametrize(("content", "says"), [(None, "No such file"), (b"\xff", "not UTF-8")])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"GENAI_API_KEY_FILE=.*cannot be read: .*{says}"):
        keys(GENAI_API_KEY_FILE=str(tmp_path / "keys"))


def test_the_command_makes_a_key_and_the_line_that_knows_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["key", "ann"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    (tmp_path / "keys").write_text(second.partition(": ")[2])
    found = keys(GENAI_API_KEY_FILE=str(tmp_path / "keys")).find(first.split()[-1])
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


def test_the_command_does_not_append_what_would_make_the_file_invalid(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    assert main(["key", "ann", "--append", str(file)]) == 0
    before = file.read_text()
    assert main(["key", "ann", "--append", str(file)]) == 2
    assert f"{file} has a key of the name ann already" in capsys.readouterr().err
    assert main(["key", "bob", "--append", str(file), "--rate", "1000000"]) == 2
    assert "at most 6 digits; given rate=1000000" in capsys.readouterr().err
    assert main(["key", "bob", "--append", str(tmp_path)]) == 2
    assert file.read_text() == before
    file.write_text("nonsense\n")
    assert main(["key", "bob", "--append", str(file)]) == 2
    assert file.read_text() == "nonsense\n"


def test_the_command_refuses_a_name_that_no_line_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "ann b"]) == 2
    assert "must have 1 to 64 letters, digits" in capsys.readouterr().err


def test_made_keys_differ_and_are_long() -> None:
    assert len({make_key() for _ in range(100)}) == 100
    assert len(make_key()) > 40
