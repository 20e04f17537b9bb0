use bytes::Bytes;
use env::Env;
use futures::future::join_all;
use thiserror::Error;

use crate::{BlobError, BlobStore, PutOutcome};

const ROUNDS: usize = 5;
const WRITERS: usize = 4;

/// Why a store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProbeError {
    /// It does not do what it was asked: unreachable, no such bucket, a permission is missing.
    #[error("object store self-test failed to {step}: {error}")]
    Failed {
        /// What was tried.
        step: &'static str,
        /// What the store said (not as a source: a chain of errors would print it twice).
        error: BlobError,
    },
    /// Create-if-absent is not atomic, so two leaders could both believe that they wrote the log.
    #[error(
        "object store cannot be used: {winners} of {WRITERS} concurrent writers were told that they created {key} \
         (If-None-Match must have exactly one winner)"
    )]
    NotAtomic {
        /// The key that they fought for.
        key: String,
        /// How many won.
        winners: usize,
    },
    /// It gave back something else than what was stored.
    #[error("object store cannot be used: {0}")]
    Wrong(String),
}

/// Tests at start-up that the store can be reached, read, written, listed and deleted from, and that create-if-absent has
/// exactly one winner. Leaves nothing behind.
pub async fn probe(store: &dyn BlobStore, env: &Env) -> Result<(), ProbeError> {
    let base = format!("probe/{}", env.uuid());
    let keys: Vec<String> = (0..ROUNDS).map(|round| format!("{base}/{round}")).collect();
    let result = rounds(store, &base, &keys).await;
    let failed = |error| ProbeError::Failed {
        step: "delete an object",
        error,
    };
    let deleted = match store.delete_many(&keys).await {
        Ok(errors) => errors
            .into_iter()
            .next()
            .map_or(Ok(()), |(_, error)| Err(failed(error))),
        Err(error) => Err(failed(error)),
    };
    result.and(deleted)
}

async fn rounds(store: &dyn BlobStore, base: &str, keys: &[String]) -> Result<(), ProbeError> {
    let failed = |step| move |error| ProbeError::Failed { step, error };
    for key in keys {
        let bodies: Vec<Bytes> = (0..WRITERS)
            .map(|writer| Bytes::from(format!("{key} {writer}")))
            .collect();
        let tries = bodies
            .iter()
            .map(|body| store.put_if_absent(key, vec![body.clone()]));
        let mut winners = Vec::new();
        let mut unknown = 0;
        for (outcome, body) in join_all(tries).await.into_iter().zip(&bodies) {
            match outcome {
                Ok(PutOutcome::Created) => winners.push(body),
                Ok(PutOutcome::Exists) => {}
                // It may have won, silently.
                Err(error) if error.outcome_unknown() && unknown + 1 < WRITERS => unknown += 1,
                Err(error) => return Err(failed("create an object")(error)),
            }
        }
        if winners.len() > 1 || (winners.is_empty() && unknown == 0) {
            return Err(ProbeError::NotAtomic {
                key: key.clone(),
                winners: winners.len(),
            });
        }
        let read = store.get(key).await.map_err(failed("read an object"))?;
        let expected = winners
            .first()
            .map_or_else(|| bodies.contains(&read), |body| **body == read);
        if !expected {
            return Err(ProbeError::Wrong(format!(
                "{key} does not hold what its creator wrote"
            )));
        }
        let mut part = read.clone();
        let part = part.split_off(1).split_to(3);
        if store.get_range(key, 1..4).await.map_err(failed("read a range"))? != part {
            return Err(ProbeError::Wrong(format!(
                "a range of {key} is not that part of it"
            )));
        }
    }
    let listed = store
        .list(&format!("{base}/"), None, ROUNDS + 1)
        .await
        .map_err(failed("list objects"))?;
    if !listed.iter().map(|object| &object.key).eq(keys) {
        return Err(ProbeError::Wrong(format!(
            "the list of {base}/ is not what was written, in byte order"
        )));
    }
    Ok(())
}
