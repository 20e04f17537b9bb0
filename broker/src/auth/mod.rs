//! Who speaks to whom: the secret that the nodes of a cluster share, and SCRAM, by which they prove that they have it.
//!
//! A connection to the internal listener begins with Kafka's SASL requests. Whoever completes them is
//! `User:diskless-node` and holds CLUSTER_ACTION; nobody else gets an answer there (ADR 0010).

pub mod scram;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::hmac;
use env::Env;
use parking_lot::Mutex;

use scram::{Keys, SaltedPassword};

/// The user that every node of a cluster is. It holds CLUSTER_ACTION.
pub const NODE_USER: &str = "diskless-node";
/// A secret must not be guessed, in bytes.
const MIN_SECRET: usize = 16;
/// Larger files are not secrets, in bytes.
const MAX_SECRET: usize = 1024;

/// The secret of a cluster cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("internal.secret_file: {0}")]
pub struct SecretError(String);

/// What all nodes of a cluster know and nobody else does.
pub struct ClusterSecret {
    file: Option<PathBuf>,
    current: Mutex<Arc<Derived>>,
}

/// A secret with what is computed from it.
pub struct Derived {
    secret: Vec<u8>,
    salt: Vec<u8>,
    iterations: NonZeroU32,
    password: SaltedPassword,
    keys: Keys,
}

impl std::fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterSecret")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl ClusterSecret {
    /// The secret in `file`. Blanks around it do not count.
    pub fn read(file: &Path) -> Result<ClusterSecret, SecretError> {
        let secret = read(file)?;
        Ok(ClusterSecret {
            file: Some(file.to_owned()),
            current: Mutex::new(Arc::new(Derived::new(secret))),
        })
    }

    /// A secret that only this process knows.
    pub fn random(env: &Env) -> ClusterSecret {
        ClusterSecret {
            file: None,
            current: Mutex::new(Arc::new(Derived::new(nonce(env).into_bytes()))),
        }
    }

    /// The secret as it is now: a file that was replaced counts from the next connection on. While it cannot be read
    /// the last one stays.
    pub fn current(&self) -> Arc<Derived> {
        let mut current = self.current.lock();
        if let Some(file) = &self.file {
            match read(file) {
                Ok(secret) if secret != current.secret => {
                    tracing::info!(file = %file.display(), "the cluster's secret has changed");
                    *current = Arc::new(Derived::new(secret));
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "the last secret stays in use"),
            }
        }
        current.clone()
    }
}

impl Derived {
    /// The salt comes from the secret: all nodes have the same one, so each stretches the secret once, not for every
    /// connection. A salt protects weak passwords that several users chose; this is one long random secret.
    fn new(secret: Vec<u8>) -> Derived {
        let salt = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, &secret),
            b"diskless internal salt",
        );
        let salt = salt.as_ref().get(..16).unwrap_or_default().to_vec();
        let iterations = NonZeroU32::new(scram::ITERATIONS).unwrap_or(NonZeroU32::MIN);
        let password = SaltedPassword::derive(&secret, &salt, iterations);
        let keys = Keys::of(&password, &salt, iterations);
        Derived {
            secret,
            salt,
            iterations,
            password,
            keys,
        }
    }

    /// For the server's side: the keys of a user, which is [`NODE_USER`] or unknown.
    pub fn keys(&self, user: &str) -> Option<Keys> {
        (user == NODE_USER).then(|| self.keys.clone())
    }

    /// For the client's side.
    pub fn salted(&self, salt: &[u8], iterations: NonZeroU32) -> SaltedPassword {
        if salt == self.salt && iterations == self.iterations {
            self.password.clone()
        } else {
            // The peer has another secret, and will say so.
            SaltedPassword::derive(&self.secret, salt, iterations)
        }
    }
}

/// Fresh randomness in printable ASCII: 256 bits.
pub fn nonce(env: &Env) -> String {
    (0..4).map(|_| format!("{:016x}", env.random_u64())).collect()
}

fn read(file: &Path) -> Result<Vec<u8>, SecretError> {
    let error = |reason: String| SecretError(format!("{}: {reason}", file.display()));
    let bytes = std::fs::read(file).map_err(|e| error(e.to_string()))?;
    let secret = bytes.trim_ascii();
    if !(MIN_SECRET..=MAX_SECRET).contains(&secret.len()) {
        return Err(error(format!(
            "a secret has {MIN_SECRET} to {MAX_SECRET} bytes, this one {}",
            secret.len()
        )));
    }
    Ok(secret.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_without_its_line_end_and_again_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let message = ClusterSecret::read(&file).unwrap_err().to_string();
        assert!(
            message.contains("internal.secret_file") && message.contains("secret:"),
            "{message}"
        );
        std::fs::write(&file, "short\n").unwrap();
        assert!(ClusterSecret::read(&file).unwrap_err().to_string().contains("16"));
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let secret = ClusterSecret::read(&file).unwrap();
        assert_eq!(secret.current().secret, b"0123456789abcdef");
        std::fs::write(&file, "fedcba9876543210").unwrap();
        assert_eq!(secret.current().secret, b"fedcba9876543210");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(secret.current().secret, b"fedcba9876543210");
        assert!(!format!("{secret:?}").contains("fedcba"));
    }
}
