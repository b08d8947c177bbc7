"""The tables of stored records, and the migration of files of older versions."""

import sqlite3

from genai_server.apis.responses.store_records import EVENT, ITEM, OUTPUT
from genai_server.apis.shared.database import statements

# Files of unknown versions are not changed.
VERSION = 4
# Triggers maintain the sums in `owners`, so that checking the limits does not read all records.
_SCHEMA = """
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
# Versions 1 to 3 had one JSON document for each record, and tables that can be derived from it.
_SET_OLD_ASIDE = """
    DROP TRIGGER IF EXISTS record_added;
    DROP TRIGGER IF EXISTS record_removed;
    DROP TABLE IF EXISTS items;
    DROP TABLE IF EXISTS owners;
    DROP TABLE IF EXISTS deleted;
    DROP INDEX records_by_use;
    ALTER TABLE records RENAME TO old;
"""
_COPY_OLD = f"""
    INSERT INTO records
        SELECT rowid, owner, json_extract(text, '$.value.object'), id, used,
            CAST(json_replace(json_extract(text, '$.value'), '$.output', json('[]')) AS BLOB), 0,
            COALESCE(json_extract(text, '$.run'), ''), COALESCE(json_extract(text, '$.pid'), 0),
            COALESCE(json_extract(text, '$.request'), ''), COALESCE(json_extract(text, '$.is_cancelled'), 0)
        FROM (SELECT rowid, owner, id, used, CAST(json AS TEXT) AS text FROM old);
    INSERT INTO parts
        SELECT old.rowid, {ITEM}, part.key, owner, json_extract(part.value, '$.id'), CAST(part.value AS BLOB)
        FROM old, json_each(CAST(old.json AS TEXT), '$.items') AS part WHERE part.type = 'object';
    INSERT INTO parts
        SELECT old.rowid, {OUTPUT}, part.key, owner, json_extract(part.value, '$.id'), CAST(part.value AS BLOB)
        FROM old, json_each(CAST(old.json AS TEXT), '$.value.output') AS part WHERE part.type = 'object';
    INSERT INTO parts
        SELECT old.rowid, {EVENT}, part.key, owner, NULL, CAST(part.value AS BLOB)
        FROM old, json_each(CAST(old.json AS TEXT), '$.events') AS part WHERE part.type = 'object';
    UPDATE records SET size =
        LENGTH(value) + (SELECT COALESCE(SUM(LENGTH(json)), 0) FROM parts WHERE record = records.key);
    DROP TABLE old;
"""


def prepare(file: sqlite3.Connection) -> None:
    """Create the tables or migrate an older version. Raises ValueError for a newer version."""
    file.execute("BEGIN IMMEDIATE")
    (version,) = file.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise ValueError(f"it has version {version}, but this server supports version {VERSION}")
    scripts = {0: _SCHEMA, VERSION: ""}
    for statement in statements(scripts.get(version, _SET_OLD_ASIDE + _SCHEMA + _COPY_OLD)):
        file.execute(statement)
    file.execute(f"PRAGMA user_version = {VERSION}")
    file.execute("COMMIT")
