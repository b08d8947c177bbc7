"""The tables of files and batches, in one database: a batch and the files with its results appear together."""

import sqlite3

from genai_server.apis.shared.database import statements

# Files of unknown versions are not changed.
_VERSION = 1
_SCHEMA = """
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


def prepare(file: sqlite3.Connection) -> None:
    """Create the tables. Raises ValueError for a newer version."""
    if _version(file) == 0:
        file.execute("BEGIN IMMEDIATE")
        for statement in statements(_SCHEMA) if _version(file) == 0 else ():  # unless another process has just done it
            file.execute(statement)
        file.execute(f"PRAGMA user_version = {_VERSION}")
        file.execute("COMMIT")
    if (version := _version(file)) != _VERSION:
        raise ValueError(f"it has version {version}, but this server supports version {_VERSION}")


def _version(file: sqlite3.Connection) -> int:
    (version,) = file.execute("PRAGMA user_version").fetchone()
    return int(version)
