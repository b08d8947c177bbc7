"""Uploaded files and result files of batches, as in OpenAI's files API: their contents are in a folder, and their
properties in the server's database, the store (`FileStore`).
"""

import asyncio
import os
import re
import secrets
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from genai_server.errors import InvalidField, StoredFileNotFound, UploadUnavailable, quoted
from genai_server.store.database import Database, JsonObject

# What a file counts at least, in bytes: an empty one takes space, too.
MIN_COUNTED = 4096
_COUNTED = f"COALESCE(SUM(MAX(size, {MIN_COUNTED})), 0)"
# The name of a content. Other files in its folder are somebody else's.
_CONTENT = re.compile("file-[0-9a-f]{24}")
# Seconds after which a content without a row is removed: it is moved into the folder before its row is written.
_ORPHAN_AGE = 3600
_COLUMNS = "id, owner, created, expires, name, purpose, size"


@dataclass(frozen=True)
class StoredFile:
    """The properties of a stored file, such as id, name, size in bytes, purpose, and when it expires."""

    id: str
    # Stands for an API key; "" without API keys.
    owner: str
    # In seconds since 1970. `expires` is None for a file that stays.
    created: int
    expires: int | None
    name: str
    purpose: str
    # In bytes.
    size: int

    def to_json(self) -> JsonObject:
        """Return the file as an object in the format of OpenAI's files API."""
        expires = {} if self.expires is None else {"expires_at": self.expires}
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created,
            **expires,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True)
class FileLimits:
    """The limits of a FileStore: maximum bytes of files for each owner (API key) and for all owners together, and
    maximum number of files of an owner.
    """

    per_owner: int
    total: int
    files: int = 50_000


class FileStore:
    """Stores uploaded files and result files of batches, within limits. A file is visible only to its owner (API key).
    Each API process has one FileStore; all use the same folder and the same database.

    The constructor creates the folders, and raises OSError if it cannot. Only the event loop may call the methods; each
    of them raises StoreUnavailable if the database cannot be used.
    """

    def __init__(self, database: Database, folder: Path, limits: FileLimits) -> None:
        self.database = database
        self._contents = folder / "contents"
        # Files by which processes agree on who runs a batch.
        self.locks = folder / "locks"
        # Has a folder for the uploads of each process.
        self.uploads = folder / "uploads"
        # This process's folder in `uploads`, to which uploads are written before they are added; set once it exists.
        self.own_uploads = self.uploads
        for directory in (folder, self._contents, self.locks, self.uploads):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._limits = limits

    def content(self, id: str) -> Path:
        """Return the path of the content of the file with this id. The file need not exist."""
        return self._contents / id

    async def add(self, upload: Path, name: str, purpose: str, owner: str, seconds: int) -> StoredFile:
        """Move the uploaded file at the path `upload` into the store, with this name and purpose, for `owner` (an API
        key), and return its properties. It is removed after `seconds` seconds.

        Raises InvalidField if the owner would have too many files or bytes, and UploadUnavailable if all files together
        would have too many bytes or if the disk fails.
        """
        id = new_id("file")
        try:
            size = await asyncio.to_thread(_move, upload, self.content(id))
        except OSError as error:
            raise UploadUnavailable(f"the uploaded file cannot be kept: {error.strerror}") from None
        now = int(time.time())
        file = StoredFile(id, owner, now, now + seconds, name, purpose, size)
        try:
            await self.database.write(owner, lambda rows: self._insert(rows, file), is_durable=True)
        except BaseException:
            await asyncio.to_thread(_remove, self.content(id))
            raise
        return file

    async def get(self, id: str, owner: str) -> StoredFile:
        """Return the properties of the file with this id, which must belong to `owner` (an API key). Raises
        StoredFileNotFound.
        """
        file = await self.database.read(owner, lambda rows: find(rows, id, owner))
        if file is None:
            raise _not_found(id)
        return file

    async def page(
        self, owner: str, *, after: str | None, limit: int, order: str, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Return a page of at most `limit` files of `owner` (an API key), and whether more follow. The page begins
        after the file with the id `after`; None for the first page.

        `order` is "asc" (oldest first) or "desc". If `purpose` is given, only files with this purpose are listed.
        Raises InvalidField if the owner has no file with the id `after`.
        """

        def read(rows: sqlite3.Connection) -> list[StoredFile]:
            start = start_of(rows, "files", after, owner, order)
            files = rows.execute(
                f"SELECT {_COLUMNS} FROM files WHERE owner = ? AND writer = '' AND purpose = COALESCE(?, purpose)"
                f" AND COALESCE(expires, ?) > ? AND key {'<' if order == 'desc' else '>'} ?"
                f" ORDER BY key {order} LIMIT ?",
                (owner, purpose, 2**62, int(time.time()), start, limit + 1),
            )
            return [StoredFile(*row) for row in files]

        files = await self.database.read(owner, read)
        return files[:limit], len(files) > limit

    async def delete(self, id: str, owner: str) -> None:
        """Delete the file with this id of `owner` (an API key). Raises StoredFileNotFound if there is none, and
        InvalidField while the file is the input of a running batch.
        """

        def remove(rows: sqlite3.Connection) -> bool:
            if find(rows, id, owner) is None:
                return False
            reader = rows.execute("SELECT id FROM batches WHERE is_open AND input = ?", (id,)).fetchone()
            if reader is not None:
                raise InvalidField(
                    "file_id", f"{id} is the input of {reader[0]}, which has not ended: cancel the batch, or wait"
                )
            rows.execute("DELETE FROM files WHERE id = ?", (id,))
            return True

        if not await self.database.write(owner, remove, is_durable=True):
            raise _not_found(id)
        await asyncio.to_thread(_remove, self.content(id))

    def reached_limit(self, rows: sqlite3.Connection, owner: str) -> str:
        """Return the name of the setting whose limit is reached, if the batches of `owner` may not write more results
        because the stored files take too many bytes; otherwise "". `rows` is the connection of the current transaction.
        """
        _, own_bytes, total = _used(rows, owner)
        if own_bytes >= self._limits.per_owner:
            return "GENAI_FILES_BYTES_PER_KEY"
        return "GENAI_FILES_BYTES" if total >= self._limits.total else ""

    async def remove_expired(self) -> None:
        """Remove files that have expired, except inputs of running batches, and contents without an entry in the
        database.
        """

        def expired(rows: sqlite3.Connection) -> None:
            rows.execute(
                "DELETE FROM files WHERE expires <= ? AND writer = ''"
                " AND id NOT IN (SELECT input FROM batches WHERE is_open)",
                (int(time.time()),),
            )

        await self.database.write("", expired, is_durable=True)
        # Listed first: what is added in between is known.
        listed = await asyncio.to_thread(_old_enough, self._contents)
        if listed:
            stored = await self.database.read("", lambda rows: {id for (id,) in rows.execute("SELECT id FROM files")})
            orphans = set(listed) - stored
            await asyncio.to_thread(_remove, *(self.content(id) for id in orphans))

    def _insert(self, rows: sqlite3.Connection, file: StoredFile) -> None:
        number, own_bytes, total = _used(rows, file.owner)
        counted = max(file.size, MIN_COUNTED)
        if number >= self._limits.files:
            raise InvalidField(
                "file",
                f"cannot be stored: an API key may have at most {self._limits.files} files, and has {number}; delete "
                "some",
            )
        if own_bytes + counted > self._limits.per_owner:
            raise InvalidField(
                "file",
                f"cannot be stored: the files of an API key may have at most {self._limits.per_owner} bytes together "
                f"(GENAI_FILES_BYTES_PER_KEY), and have {own_bytes}; delete some",
                given=counted,
            )
        if total + counted > self._limits.total:
            raise UploadUnavailable(
                f"all files together may have at most {self._limits.total} bytes (GENAI_FILES_BYTES), and have "
                f"{total}, given {counted} more"
            )
        insert(rows, file)


def new_id(prefix: str) -> str:
    """Return a new random id in OpenAI's form, such as `file-…` or `batch_…`, that begins with `prefix`."""
    return f"{prefix}-{secrets.token_hex(12)}" if prefix == "file" else f"{prefix}_{secrets.token_hex(12)}"


def insert(rows: sqlite3.Connection, file: StoredFile, writer: str = "") -> None:
    """Add a file to the table of files, in the caller's transaction on `rows`. `writer` is the id of the batch that
    still writes the file; such a file is invisible to requests. "" stands for a complete file.
    """
    values = (file.id, file.owner, file.created, file.expires, file.name, file.purpose, file.size, writer)
    rows.execute(f"INSERT INTO files ({_COLUMNS}, writer) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)


def find(rows: sqlite3.Connection, id: str, owner: str) -> StoredFile | None:
    """Return the properties of the file with this id; None unless the file belongs to `owner` (an API key), is complete
    and has not expired. `rows` is the connection of the current transaction.
    """
    row = rows.execute(
        f"SELECT {_COLUMNS} FROM files WHERE id = ? AND owner = ? AND writer = '' AND COALESCE(expires, ?) > ?",
        (id, owner, 2**62, int(time.time())),
    ).fetchone()
    return None if row is None else StoredFile(*row)


def start_of(rows: sqlite3.Connection, table: str, after: str | None, owner: str, order: str) -> int:
    """Return the primary key in `table` after which a page begins: that of the row with the id `after` or, if `after`
    is None, a key before the first row in this order.

    `order` is "asc" or "desc". Raises InvalidField if the owner has no row with the id `after`.
    """
    if after is None:
        return 2**62 if order == "desc" else 0
    row = rows.execute(f"SELECT key FROM {table} WHERE id = ? AND owner = ?", (after, owner)).fetchone()
    if row is None:
        raise InvalidField("after", f"must be the id of one of the {table}", given=after)
    key: int = row[0]
    return key


def _used(rows: sqlite3.Connection, owner: str) -> tuple[int, int, int]:
    """Return the number of an owner's files, their bytes, and the bytes of all owners' files."""
    number, own_bytes = rows.execute(f"SELECT COUNT(*), {_COUNTED} FROM files WHERE owner = ?", (owner,)).fetchone()
    (total,) = rows.execute(f"SELECT {_COUNTED} FROM files").fetchone()
    return number, own_bytes, total


def _not_found(id: str) -> StoredFileNotFound:
    return StoredFileNotFound(f"no file {quoted(id)} is stored", param="file_id")


def _move(source: Path, target: Path) -> int:
    """Move the file `source` to `target` so that a power failure cannot undo the move or damage the file. Returns the
    file's size in bytes.
    """
    with source.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(source, target)
    return target.stat().st_size


def _remove(*paths: Path) -> None:
    for path in paths:
        with suppress(OSError):  # on Windows a file stays while it is sent, and is removed later
            path.unlink(missing_ok=True)


def _old_enough(folder: Path) -> list[str]:
    latest = time.time() - _ORPHAN_AGE
    names = []
    for entry in os.scandir(folder):
        with suppress(OSError):  # it has just been removed
            if _CONTENT.fullmatch(entry.name) and entry.stat().st_mtime < latest:
                names.append(entry.name)
    return names
