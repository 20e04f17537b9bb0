use std::path::PathBuf;

use parking_lot::Mutex;
use rusqlite::Connection;

use super::schema;

/// Connections that are kept when nobody reads.
const IDLE: usize = 16;

/// Read-only connections to a view. Each read sees one committed state, whatever the leader does meanwhile.
pub struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            idle: Mutex::default(),
        }
    }

    /// Runs `read` in one read transaction.
    pub fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let kept = self.idle.lock().pop();
        let db = match kept {
            Some(db) => db,
            None => schema::open_reader(&self.path)?,
        };
        db.prepare_cached("BEGIN")?.execute(())?;
        let result = read(&db);
        db.prepare_cached("ROLLBACK")?.execute(())?;
        let mut idle = self.idle.lock();
        if idle.len() < IDLE {
            idle.push(db);
        }
        result
    }
}
