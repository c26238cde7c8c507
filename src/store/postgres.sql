-- The version of these tables: 1.
CREATE TABLE IF NOT EXISTS tollgate_schema (version bigint PRIMARY KEY);
INSERT INTO tollgate_schema (version) VALUES (1) ON CONFLICT DO NOTHING;
-- A row for each key of a limiter. The id is sha256(limiter) || sha256(k), because an index entry cannot be as long as a key. A
-- row can be deleted after it expires, in microseconds since 1970. The expiry has no index, and each page has spare room, so that
-- an update changes no index.
CREATE TABLE IF NOT EXISTS tollgate_keys (
    id bytea PRIMARY KEY,
    limiter bytea NOT NULL,
    k bytea NOT NULL,
    ver bigint NOT NULL,
    expires bigint NOT NULL,
    state bytea NOT NULL
) WITH (fillfactor = 50);
