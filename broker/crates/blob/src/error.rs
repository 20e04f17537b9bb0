use thiserror::Error;

/// Why a store did not do what it was asked. The text names the key and what the store said.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlobError {
    /// There is no object under this key.
    #[error("object {0} does not exist")]
    NotFound(String),
    /// Credentials are missing or wrong, or they lack a permission.
    #[error("access denied: {0}")]
    Denied(String),
    /// The store refused for now and did nothing: too many requests, or two writers at the same instant.
    #[error("throttled by the object store: {0}")]
    Throttled(String),
    /// The store could not be reached or failed. A write may have happened.
    #[error("object store unavailable: {0}")]
    Unavailable(String),
    /// No answer in time. A write may have happened.
    #[error("object store timed out: {0}")]
    Timeout(String),
    /// Bytes came back that are not those that were stored.
    #[error("corrupt object: {0}")]
    Corrupt(String),
    /// The request can never work: bad key, bad URL parameter, no such bucket.
    #[error("{0}")]
    Invalid(String),
}

impl BlobError {
    /// True if trying again later may work.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            BlobError::Throttled(_) | BlobError::Unavailable(_) | BlobError::Timeout(_)
        )
    }

    /// True if a write that failed like this may have happened, or may still happen.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, BlobError::Unavailable(_) | BlobError::Timeout(_))
    }
}
