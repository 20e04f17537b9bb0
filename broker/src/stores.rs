//! The object store as the parts of a node use it.

use std::sync::Arc;

use blob::{Retrying, SharedStore};
use env::Env;

/// The object store, once for each of those who must not wait for each other: it throttles by its own measure, and who is
/// throttled slows down.
#[derive(Clone, Debug)]
pub struct Stores {
    /// WAL objects, for producers and for consumers at the end of the log.
    pub(crate) data: SharedStore,
    /// WAL objects, for consumers far behind.
    pub(crate) cold: SharedStore,
    /// The metadata logs and their snapshots.
    pub(crate) logs: SharedStore,
}

impl Stores {
    /// `bare` with retries and paces for each.
    pub fn retrying(bare: &SharedStore, env: &Env) -> Stores {
        let [data, cold, logs] =
            [(); 3].map(|()| -> SharedStore { Arc::new(Retrying::new(bare.clone(), env.clone())) });
        Stores { data, cold, logs }
    }
}

impl From<SharedStore> for Stores {
    /// The same for all.
    fn from(store: SharedStore) -> Stores {
        Stores {
            data: store.clone(),
            cold: store.clone(),
            logs: store,
        }
    }
}
