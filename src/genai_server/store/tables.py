"""The tables of the store, and the migration of stores that version 0.2.0 has written."""

import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path

from genai_server.store.database import Database, check_version, statements

VERSION = 5
# The version of response stores of 0.2.0, which had the tables of responses only.
_RESPONSES_ONLY = 4
# Versions that can be opened; 0 is a new file. Others are not changed.
KNOWN_VERSIONS = frozenset({0, _RESPONSES_ONLY, VERSION})
# The state of files and batches in GENAI_FILES_DIR as 0.2.0 wrote it, and its version.
INDEX_NAME = "index"
_INDEX_VERSION = 1
# Database size in bytes for each byte of records. Indexes and partly filled pages take up to 5 bytes if items are
# small. A file that is full before its records reach their limit would never accept another one.
_SIZE_FACTOR = 8
# Database size for files and batches, of which the limits of an owner are a small part; and without them.
_FILES_BYTES = 1024**3
_MIN_BYTES = 1024**2

# Triggers maintain the sums in `owners`, so that checking the limits does not read all records.
_RESPONSES = """
    CREATE TABLE records (
        key INTEGER PRIMARY KEY, owner TEXT NOT NULL, object TEXT NOT NULL, id TEXT NOT NULL, used INTEGER NOT NULL,
        value BLOB NOT NULL, size INTEGER NOT NULL, run TEXT NOT NULL, pid INTEGER NOT NULL, request TEXT NOT NULL,
        is_cancelled INTEGER NOT NULL DEFAULT 0, UNIQUE (owner, id)
    );
    CREATE INDEX records_by_use ON records (owner, used);
    CREATE TABLE parts (
        record INTEGER NOT NULL, kind INTEGER NOT NULL, place INTEGER NOT NULL, owner TEXT NOT NULL, id TEXT,
        json BLOB NOT NULL
    );
    CREATE UNIQUE INDEX parts_by_place ON parts (record, kind, place);
    CREATE INDEX parts_by_id ON parts (owner, id, record, kind, place) WHERE id IS NOT NULL;
    CREATE TABLE owners (owner TEXT PRIMARY KEY, number INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TRIGGER record_added AFTER INSERT ON records BEGIN
        INSERT OR IGNORE INTO owners VALUES (new.owner, 0, 0);
        UPDATE owners SET number = number + 1, size = size + new.size WHERE owner = new.owner;
    END;
    CREATE TRIGGER record_resized AFTER UPDATE OF size ON records BEGIN
        UPDATE owners SET size = size + new.size - old.size WHERE owner = new.owner;
    END;
    CREATE TRIGGER record_removed AFTER DELETE ON records BEGIN
        DELETE FROM parts WHERE record = old.key;
        UPDATE owners SET number = number - 1, size = size - old.size WHERE owner = old.owner;
        DELETE FROM owners WHERE owner = old.owner AND number = 0;
    END;
"""
_FILES = """
    CREATE TABLE files (
        key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created INTEGER NOT NULL,
        expires INTEGER, name TEXT NOT NULL, purpose TEXT NOT NULL, size INTEGER NOT NULL, writer TEXT NOT NULL
    );
    CREATE INDEX files_by_owner ON files (owner, key);
    CREATE INDEX files_by_expiry ON files (expires) WHERE expires IS NOT NULL;
    CREATE TABLE batches (
        key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, is_open INTEGER NOT NULL,
        input TEXT NOT NULL, output TEXT NOT NULL, errors TEXT NOT NULL, keeps INTEGER NOT NULL, value BLOB NOT NULL
    );
    CREATE INDEX batches_by_owner ON batches (owner, key);
    CREATE INDEX open_batches ON batches (key) WHERE is_open;
"""
_SCRIPTS = {0: _RESPONSES + _FILES, _RESPONSES_ONLY: _FILES, VERSION: ""}
# Rows that are there already were taken over before a crash.
_TAKE_OVER = """
    INSERT OR IGNORE INTO files (id, owner, created, expires, name, purpose, size, writer)
        SELECT id, owner, created, expires, name, purpose, size, writer FROM old.files ORDER BY key;
    INSERT OR IGNORE INTO batches (id, owner, is_open, input, output, errors, keeps, value)
        SELECT id, owner, is_open, input, output, errors, keeps, value FROM old.batches ORDER BY key;
"""


def open_store(path: Path, record_bytes: int, files_dir: Path | None = None) -> Database:
    """Open the store in the file at `path`. `record_bytes` is the limit of all stored responses and conversations
    together, from which the maximum size of the file is derived.

    `files_dir` is the folder for files and batches; version 0.2.0 may have left a file there that lists them.
    """
    max_bytes = _SIZE_FACTOR * record_bytes + (_MIN_BYTES if files_dir is None else _FILES_BYTES)
    return Database(path, partial(prepare, index=None if files_dir is None else files_dir / INDEX_NAME), max_bytes)


def prepare(rows: sqlite3.Connection, index: Path | None = None) -> None:
    """Create the tables in a new file, or migrate the tables of version 0.2.0.

    Rows of `index`, the file in which 0.2.0 kept files and batches, are moved into the store, and the file is removed.
    Raises ValueError for a file of another version, which is not changed.
    """
    has_index = index is not None and index.exists()
    if index is not None and has_index:
        rows.execute("ATTACH ? AS old", (f"{index.absolute().as_uri()}?mode=rw",))
        (version,) = rows.execute("PRAGMA old.user_version").fetchone()
        if version != _INDEX_VERSION:
            raise ValueError(f"{index} has version {version}, but this server supports version {_INDEX_VERSION}")
    rows.execute("BEGIN IMMEDIATE")
    version = check_version(rows, KNOWN_VERSIONS)
    for statement in statements(_SCRIPTS[version] + (_TAKE_OVER if has_index else "")):
        rows.execute(statement)
    rows.execute(f"PRAGMA user_version = {VERSION}")
    rows.execute("COMMIT")
    if index is not None and has_index:
        rows.execute("DETACH old")
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):  # another process has removed it
                index.with_name(index.name + suffix).unlink()
