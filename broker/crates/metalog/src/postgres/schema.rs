//! The tables.
//!
//! ```text
//!  diskless.metalog_log                              diskless.metalog_slot
//!    cluster, name   whose log it is                   log, offset   its place
//!    id              what its slots are filed under    body          as in the engine `object`
//!    sequence        of the manifest
//!    epoch, nonce    who may append
//!    log_start       the first slot that counts
//!    tail, chain     the next slot, the hash of the last
//!    manifest        as in the engine `object`; NULL before the first take-over
//! ```
//!
//! `epoch`, `nonce` and `log_start` repeat what the manifest says, for statements to compare.

use super::database::{Database, value};
use super::statements::Statement;
use crate::LogError;

/// Of the tables. A later release that needs others adds a step from each version to the next.
const VERSION: i32 = 1;

/// Runs as one transaction, one at a time over all nodes.
pub(super) const CREATE: &str = "
    SELECT pg_advisory_xact_lock(7305808869231650159);
    CREATE SCHEMA IF NOT EXISTS diskless;
    CREATE TABLE IF NOT EXISTS diskless.metalog_version (version integer NOT NULL);
    CREATE TABLE IF NOT EXISTS diskless.metalog_log (
        cluster text NOT NULL,
        name text NOT NULL,
        id uuid NOT NULL UNIQUE,
        sequence bigint NOT NULL,
        epoch bigint NOT NULL,
        nonce uuid,
        log_start bigint NOT NULL,
        tail bigint NOT NULL,
        chain bytea NOT NULL,
        manifest bytea,
        PRIMARY KEY (cluster, name)
    ) WITH (fillfactor = 50);
    CREATE TABLE IF NOT EXISTS diskless.metalog_slot (
        log uuid NOT NULL,
        \"offset\" bigint NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (log, \"offset\")
    );
    -- Entries are packed already.
    ALTER TABLE diskless.metalog_slot ALTER COLUMN body SET STORAGE EXTERNAL;
    INSERT INTO diskless.metalog_version SELECT 1 WHERE NOT EXISTS (SELECT FROM diskless.metalog_version);
";

async fn version(database: &Database) -> Result<Option<i32>, LogError> {
    let there = database.read(Statement::HasTables, &[]).await?;
    if !there.first().map_or(Ok(false), |row| value(row, 0))? {
        return Ok(None);
    }
    let rows = database.read(Statement::Version, &[]).await?;
    rows.first().map(|row| value(row, 0)).transpose()
}

/// Creates what is not there. A role that may not create tables does, if somebody else has created them.
pub(super) async fn ensure(database: &Database) -> Result<(), LogError> {
    let found = match version(database).await? {
        Some(found) => Some(found),
        None => {
            database.batch(Statement::CreateTables).await?;
            version(database).await?
        }
    };
    match found {
        Some(VERSION) => Ok(()),
        found => Err(LogError::Invalid(format!(
            "metadata_log.url: the tables of this database have version {}, this release knows {VERSION}",
            found.map_or("none".to_owned(), |version| version.to_string())
        ))),
    }
}
