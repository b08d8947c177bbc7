"""An engine's heartbeats as its supervisor reads them."""

from pathlib import Path

from genai_server.heartbeat import Beat, Heartbeat, read_beat


def test_the_newest_beat_is_read_from_the_file(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "beat")
    assert read_beat(tmp_path / "beat") == Beat(0, 0)
    heartbeat.beat()
    assert read_beat(tmp_path / "beat") == Beat(1, 0)
    heartbeat.beat(256)
    assert read_beat(tmp_path / "beat") == Beat(2, 256)


def test_heartbeat_has_the_current_and_total_requests(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "beat")
    heartbeat.beat(7)
    heartbeat.count(2, 9)
    heartbeat.beat()
    assert read_beat(tmp_path / "beat") == Beat(2, 0, 2, 9)


def test_heartbeat_has_the_bytes_of_keys_and_values(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "beat")
    heartbeat.beat(7)
    heartbeat.hold(2**40)
    heartbeat.count(2, 9)
    assert read_beat(tmp_path / "beat") == Beat(1, 7, 2, 9, 2**40)


def test_missing_or_partial_file_is_no_beat(tmp_path: Path) -> None:
    assert read_beat(tmp_path / "none") == Beat(0, 0)
    (tmp_path / "part").write_bytes(b"1234")
    assert read_beat(tmp_path / "part") == Beat(0, 0)


def test_heartbeat_file_is_private_to_the_user(tmp_path: Path) -> None:
    Heartbeat(tmp_path / "beat")
    assert (tmp_path / "beat").stat().st_mode & 0o077 == 0
