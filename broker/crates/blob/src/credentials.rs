use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::future;
use aws_sdk_s3::config::{Credentials, ProvideCredentials};
use env::{Env, Instant};
use parking_lot::Mutex;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// `session_token` is optional.
const FILES: [&str; 3] = ["access_key_id", "secret_access_key", "session_token"];

/// Credentials from files of a directory (a projected Secret), read again when they change.
#[derive(Debug, Clone)]
pub(crate) struct FileCredentials {
    env: Env,
    directory: PathBuf,
    cached: Arc<Mutex<Option<Cached>>>,
}

#[derive(Debug, Clone)]
struct Cached {
    credentials: Credentials,
    stamps: Stamps,
    looked_at: Instant,
}

/// Modification times of [`FILES`].
type Stamps = [Option<SystemTime>; 3];

impl FileCredentials {
    pub(crate) fn new(directory: &Path, env: Env) -> FileCredentials {
        FileCredentials {
            env,
            directory: directory.to_owned(),
            cached: Arc::default(),
        }
    }

    /// The credentials as they are now.
    pub(crate) async fn load(&self) -> Result<Credentials, CredentialsError> {
        let now = self.env.instant();
        let cached = self.cached.lock().clone();
        if let Some(cached) = &cached
            && now.saturating_duration_since(cached.looked_at) < LOOK_EVERY
        {
            return Ok(cached.credentials.clone());
        }
        let directory = self.directory.clone();
        let fresh = self.env.blocking(move || read(&directory, cached, now)).await;
        let fresh = fresh.map_err(CredentialsError::not_loaded)?;
        *self.cached.lock() = Some(fresh.clone());
        Ok(fresh.credentials)
    }
}

fn read(directory: &Path, cached: Option<Cached>, now: Instant) -> io::Result<Cached> {
    // Times first: if the files are swapped while we read, the next look finds other times and reads again.
    let stamps = FILES.map(|file| {
        fs::metadata(directory.join(file))
            .and_then(|file| file.modified())
            .ok()
    });
    if let Some(cached) = cached
        && cached.stamps == stamps
    {
        return Ok(Cached {
            looked_at: now,
            ..cached
        });
    }
    let value = |file: &str| {
        let path = directory.join(file);
        match fs::read_to_string(&path) {
            Ok(text) if text.trim().is_empty() => {
                Err(io::Error::other(format!("{} is empty", path.display())))
            }
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("{}: {error}", path.display()),
            )),
        }
    };
    let [key_id, secret, token] = FILES;
    let token = match value(token) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    let credentials = Credentials::new(value(key_id)?, value(secret)?, token, None, "credentials_dir");
    Ok(Cached {
        credentials,
        stamps,
        looked_at: now,
    })
}

impl ProvideCredentials for FileCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.load())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changed_files_are_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let env = Env::simulated(1);
        let provider = FileCredentials::new(directory.path(), env.clone());
        let error = provider.load().await.unwrap_err();
        assert!(
            format!("{error:?}").contains("access_key_id"),
            "the missing file is named: {error:?}"
        );

        fs::write(file("access_key_id"), "first\n").unwrap();
        fs::write(file("secret_access_key"), "secret\n").unwrap();
        assert_eq!(provider.load().await.unwrap().access_key_id(), "first");

        fs::write(file("access_key_id"), "second").unwrap();
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
        fs::File::options()
            .write(true)
            .open(file("access_key_id"))
            .unwrap()
            .set_modified(later)
            .unwrap();
        env.sleep(LOOK_EVERY).await;
        assert_eq!(provider.load().await.unwrap().access_key_id(), "second");
    }
}
