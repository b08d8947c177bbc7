"""Files of prepared images: which are kept, when they are removed, and when their space is returned."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from genai_server.media.images.image_files import ImageFiles, PreparedImage, RequestSpace
from genai_server.messages.supervisor_protocol import Task


class Space:
    """Notes how many bytes are kept."""

    def __init__(self) -> None:
        self.num_bytes = 100

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[dict[str, Any]]]":
        raise NotImplementedError

    def shrink(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def release(self) -> None:
        self.shrink(0)


def _add(files: ImageFiles, digest: str, num_bytes: int = 10, space: RequestSpace | None = None) -> PreparedImage:
    path = files.path(digest)
    path.write_bytes(bytes(num_bytes))
    return files.add(PreparedImage(digest, [1, 2], None, path, num_bytes), space or RequestSpace(Space()))


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
    assert "a" in files
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
    assert (_left(files), files.num_bytes) == (["a", "b", "c"], 0)
    del images[0]
    assert (_left(files), files.num_bytes) == (["a", "b", "c"], 20)
    found = files.get("a")
    del images[0]
    assert (_left(files), files.num_bytes) == (["a", "c"], 20)
    del images
    assert (_left(files), files.num_bytes) == (["a"], 20)
    del found
    _add(files, "d", 30)
    assert _left(files) == ["d"]


def test_image_that_is_read_twice_counts_once(files: ImageFiles) -> None:
    first, second = _add(files, "a", 10), _add(files, "a", 12)
    assert first is second
    del first, second
    assert files.num_bytes == 12


def test_a_file_has_its_space_until_no_request_uses_it(files: ImageFiles) -> None:
    space = Space()
    of_request = RequestSpace(space)
    images = [_add(files, "a", 10, of_request), _add(files, "b", 20, of_request)]
    assert space.num_bytes == 100
    of_request.close()
    assert space.num_bytes == 30
    shared = files.get("a")
    del images[0]
    assert space.num_bytes == 30
    del images
    assert (space.num_bytes, files.num_bytes) == (10, 20)
    del shared
    assert (space.num_bytes, files.num_bytes) == (0, 30)


def test_space_for_an_image_that_is_being_prepared_is_kept(files: ImageFiles) -> None:
    space = Space()
    of_request = RequestSpace(space)
    of_request.begin()
    of_request.close()
    assert space.num_bytes == 100
    image = _add(files, "a", 10, of_request)
    of_request.end()
    assert space.num_bytes == 10
    del image
    assert space.num_bytes == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such permissions")
def test_only_this_user_can_enter_the_folder(own_folder: Path) -> None:
    files = ImageFiles(own_folder / "images", 0)
    files.create()
    assert os.stat(files.folder).st_mode & 0o777 == 0o700
    files.close()
    assert not files.folder.exists()
