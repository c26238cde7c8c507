-- A row for each key of a limiter. The id is SHA-256 of the limiter, then of k, because an index entry cannot be as long as a
-- key. A row can be deleted after it expires, in microseconds since 1970. The expiry has no index, so that an update changes no
-- index.
CREATE TABLE IF NOT EXISTS tollgate_keys (
    id binary(64) PRIMARY KEY,
    limiter longblob NOT NULL,
    k longblob NOT NULL,
    ver bigint NOT NULL,
    expires bigint NOT NULL,
    state longblob NOT NULL
) ENGINE = InnoDB;
-- The version of these tables. This table comes last: no transaction spans these statements, and a process that finds this table
-- uses the others.
CREATE TABLE IF NOT EXISTS tollgate_schema (version bigint PRIMARY KEY) ENGINE = InnoDB;
INSERT IGNORE INTO tollgate_schema (version) VALUES (1);
