-- The version of these tables: 1.
CREATE TABLE IF NOT EXISTS tollgate_schema (version INTEGER PRIMARY KEY);
INSERT OR IGNORE INTO tollgate_schema (version) VALUES (1);
-- A row for each key of a limiter: when it can be deleted, in microseconds since 1970, and its state.
CREATE TABLE IF NOT EXISTS tollgate_keys (
    limiter BLOB NOT NULL,
    k BLOB NOT NULL,
    expires INTEGER NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (limiter, k)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tollgate_keys_expires ON tollgate_keys (expires);
