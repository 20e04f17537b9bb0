use std::path::PathBuf;

use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;

use super::schema;

/// Connections that are kept when nobody reads.
const IDLE: usize = 16;

/// Read-only connections to a view. Each read sees one committed state, whatever the leader does meanwhile.
pub struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// Held shared by every read, exclusively while the file is replaced.
    file: RwLock<()>,
}

impl Readers {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            idle: Mutex::default(),
            file: RwLock::default(),
        }
    }

    /// Runs `read` in one read transaction.
    pub fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let _file = self.file.read();
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

    /// Runs `replace`, which puts another file in the place of the view, while nobody reads.
    pub fn replace<T>(&self, replace: impl FnOnce() -> T) -> T {
        let _file = self.file.write();
        self.idle.lock().clear();
        replace()
    }
}
