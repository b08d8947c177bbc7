"""Files of prepared images: which are kept, and when they are removed."""

import os
import sys
from pathlib import Path

import pytest

from genai_server.images.image_files import ImageFiles, ReadImage


def _add(files: ImageFiles, digest: str, num_bytes: int = 10) -> ReadImage:
    path = files.path(digest)
    path.write_bytes(bytes(num_bytes))
    return files.add(ReadImage(digest, [1, 2], None, path))


@pytest.fixture
def files(own_folder: Path) -> ImageFiles:
    """Files of 30 bytes."""
    files = ImageFiles(own_folder / "images", 30)
    files.create()
    return files


def _left(files: ImageFiles) -> list[str]:
    return sorted(path.stem for path in files.folder.iterdir())


def test_kept_image_is_found_again(files: ImageFiles) -> None:
    image = _add(files, "a")
    assert files.get("a") is image
    assert files.get("b") is None
    del image
    again = files.get("a")
    assert again is not None
    assert (again.digest, again.expansion, again.path) == ("a", [1, 2], files.path("a"))


def test_least_recently_used_file_is_removed_first(files: ImageFiles) -> None:
    for digest in "abc":
        _add(files, digest)
    files.get("a")
    _add(files, "d", 20)
    assert _left(files) == ["a", "d"]
    assert files.get("b") is None
    assert files.num_bytes == 30


def test_file_of_an_image_in_use_is_never_removed(files: ImageFiles) -> None:
    images = [_add(files, digest, 20) for digest in "abc"]
    assert _left(files) == ["a", "b", "c"]
    del images[0]
    _add(files, "d", 5)
    assert _left(files) == ["b", "c", "d"]
    found = files.get("b")
    del images
    _add(files, "e", 5)
    assert _left(files) == ["b", "d", "e"]
    assert found is not None


def test_new_image_stays_for_its_request_over_the_limit(files: ImageFiles) -> None:
    assert _add(files, "a", 100).path.exists()
    _add(files, "b")
    assert _left(files) == ["b"]


def test_image_that_is_read_twice_counts_once(files: ImageFiles) -> None:
    first, second = _add(files, "a", 10), _add(files, "a", 12)
    assert first is second
    assert files.num_bytes == 12


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such permissions")
def test_only_this_user_can_enter_the_folder(own_folder: Path) -> None:
    files = ImageFiles(own_folder / "images", 0)
    files.create()
    assert os.stat(files.folder).st_mode & 0o777 == 0o700
    files.close()
    assert not files.folder.exists()
