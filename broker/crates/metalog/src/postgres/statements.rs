//! All that the engine says to the database.

use tokio_postgres::types::Type;

/// Who appends tells here, as `<id of the log>/<its new tail>`.
pub(super) const CHANNEL: &str = "diskless_metalog";

/// What the engine says to the database. Every one is a transaction. Public for the database of the simulation, which has to know
/// each, and for the test that holds that one against a real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement {
    /// Whether this is a standby, and whether a commit is on its disk.
    Server,
    /// How sessions of ours are.
    Setup,
    /// To be told of appends.
    Listen,
    /// Tells of an append.
    Notify,
    /// Whether the tables are there.
    HasTables,
    /// The version of the tables.
    Version,
    /// Makes the tables, if they are not there.
    CreateTables,
    /// The row of a log, by cluster and name.
    Row,
    /// Makes the row of a log, unless it is there.
    CreateRow,
    /// Replaces one manifest by another. Gives tail and hash of the log, or nothing: there is another manifest.
    Replace,
    /// Appends a slot. Gives a row, or nothing: this writer may not append here.
    Append,
    /// One slot.
    Slot,
    /// Start and tail of a log, with each of its slots from an offset on.
    Read,
    /// Deletes slots below an offset. Gives how many.
    Delete,
}

impl Statement {
    /// All of them.
    pub const ALL: [Statement; 14] = [
        Statement::Server,
        Statement::Setup,
        Statement::Listen,
        Statement::Notify,
        Statement::HasTables,
        Statement::Version,
        Statement::CreateTables,
        Statement::Row,
        Statement::CreateRow,
        Statement::Replace,
        Statement::Append,
        Statement::Slot,
        Statement::Read,
        Statement::Delete,
    ];

    /// Its text.
    pub fn sql(self) -> &'static str {
        match self {
            Statement::Server => "SELECT pg_is_in_recovery(), current_setting('fsync') = 'on'",
            // Only what a primary has flushed to its disk (and to its standbys, if so set) may be acknowledged.
            Statement::Setup => {
                "SET default_transaction_isolation = 'read committed'; \
                 SELECT set_config('synchronous_commit', 'on', false) \
                 WHERE current_setting('synchronous_commit') IN ('off', 'local')"
            }
            Statement::Listen => "LISTEN diskless_metalog",
            Statement::Notify => "SELECT pg_notify($1, $2)",
            Statement::HasTables => "SELECT to_regclass('diskless.metalog_version') IS NOT NULL",
            Statement::Version => "SELECT version FROM diskless.metalog_version",
            Statement::CreateTables => super::schema::CREATE,
            Statement::Row => {
                "SELECT id, sequence, epoch, nonce, log_start, tail, manifest \
                 FROM diskless.metalog_log WHERE cluster = $1 AND name = $2"
            }
            Statement::CreateRow => {
                "INSERT INTO diskless.metalog_log \
                 (cluster, name, id, sequence, epoch, log_start, tail, chain) VALUES ($1, $2, $3, -1, 0, 0, 0, $4) \
                 ON CONFLICT DO NOTHING"
            }
            Statement::Replace => {
                "UPDATE diskless.metalog_log \
                 SET sequence = $3, epoch = $4, nonce = $5, log_start = $6, manifest = $7 \
                 WHERE id = $1 AND sequence = $2 RETURNING tail, chain"
            }
            // The row is locked, and read again if somebody else has just changed it, before it is compared.
            Statement::Append => {
                "WITH mine AS ( \
                     UPDATE diskless.metalog_log SET tail = $4 + 1, chain = $5 \
                     WHERE id = $1 AND epoch = $2 AND nonce = $3 AND tail = $4 RETURNING id) \
                 INSERT INTO diskless.metalog_slot (log, \"offset\", body) SELECT id, $4, $6 FROM mine RETURNING 1"
            }
            Statement::Slot => "SELECT body FROM diskless.metalog_slot WHERE log = $1 AND \"offset\" = $2",
            // The first slot, and those that begin within so many bytes of it.
            Statement::Read => {
                "SELECT l.log_start, l.tail, s.\"offset\", s.body FROM diskless.metalog_log l \
                 LEFT JOIN LATERAL ( \
                     SELECT * FROM ( \
                         SELECT \"offset\", body, sum(octet_length(body)) OVER (ORDER BY \"offset\") - octet_length(body) AS before \
                         FROM ( \
                             SELECT \"offset\", body FROM diskless.metalog_slot \
                             WHERE log = l.id AND \"offset\" >= $2 ORDER BY \"offset\" LIMIT $4 \
                         ) AS next \
                     ) AS measured WHERE before < $3 \
                 ) AS s ON true WHERE l.id = $1 ORDER BY s.\"offset\""
            }
            Statement::Delete => {
                "WITH gone AS ( \
                     DELETE FROM diskless.metalog_slot WHERE log = $1 AND \"offset\" IN ( \
                         SELECT \"offset\" FROM diskless.metalog_slot WHERE log = $1 AND \"offset\" < $2 \
                         ORDER BY \"offset\" LIMIT $3) \
                     RETURNING 1) \
                 SELECT count(*) FROM gone"
            }
        }
    }

    /// The types of its parameters: it is sent in one round trip, without being prepared first.
    pub fn types(self) -> &'static [Type] {
        match self {
            Statement::Server
            | Statement::Setup
            | Statement::Listen
            | Statement::HasTables
            | Statement::Version
            | Statement::CreateTables => &[],
            Statement::Notify | Statement::Row => &[Type::TEXT, Type::TEXT],
            Statement::CreateRow => &[Type::TEXT, Type::TEXT, Type::UUID, Type::BYTEA],
            Statement::Replace => &[
                Type::UUID,
                Type::INT8,
                Type::INT8,
                Type::INT8,
                Type::UUID,
                Type::INT8,
                Type::BYTEA,
            ],
            Statement::Append => &[
                Type::UUID,
                Type::INT8,
                Type::UUID,
                Type::INT8,
                Type::BYTEA,
                Type::BYTEA,
            ],
            Statement::Slot => &[Type::UUID, Type::INT8],
            Statement::Read => &[Type::UUID, Type::INT8, Type::INT8, Type::INT8],
            Statement::Delete => &[Type::UUID, Type::INT8, Type::INT8],
        }
    }
}
