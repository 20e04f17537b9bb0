//! Objects as files below one directory.
//!
//! A write goes to a temporary file, is forced to the disk, and only then gets its name: by `link`, which fails if
//! the name is taken (create if absent), or by `rename` (replace). Then the directory is forced to the disk, and so
//! is the entry of every directory on the way that this process has not yet seen durable. So a power cut leaves
//! the whole object or none, and never loses one that was acknowledged. Several processes may share the directory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use env::Env;
use parking_lot::Mutex;
use types::Timestamp;

use crate::key::{check_key, check_prefix};
use crate::{BlobError, BlobStore, ObjectMeta, PutOutcome};

/// Where files grow; no key can name it because parts of keys do not start with a dot.
const TEMPORARY: &str = ".tmp";
/// A temporary file lives for one write. One this old belongs to a process that is gone.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// A store in a directory of a local file system.
#[derive(Debug, Clone)]
pub struct LocalStore {
    env: Env,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    /// Directories whose own entry is known to be on the disk.
    durable: Mutex<BTreeSet<PathBuf>>,
}

impl LocalStore {
    /// Opens the store in `root`, which is created if need be, and removes what an earlier process left half-written.
    pub async fn open(root: &Path, env: Env) -> Result<LocalStore, BlobError> {
        let inner = Arc::new(Inner {
            root: root.to_owned(),
            durable: Mutex::new(BTreeSet::new()),
        });
        let (opened, now) = (inner.clone(), env.now());
        env.blocking(move || opened.prepare(now))
            .await
            .map_err(|error| failure(root, &error))?;
        Ok(LocalStore { env, inner })
    }

    async fn run<T, F>(&self, key: &str, work: F) -> Result<T, BlobError>
    where
        T: Send + 'static,
        F: FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    {
        let inner = self.inner.clone();
        let done = self.env.blocking(move || work(&inner)).await;
        done.map_err(|error| match error.kind() {
            ErrorKind::NotFound => BlobError::NotFound(key.to_owned()),
            _ => failure(&self.inner.root.join(key), &error),
        })
    }
}

fn failure(path: &Path, error: &io::Error) -> BlobError {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => BlobError::Denied(text),
        // A file where the key has a directory, or the reverse.
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::InvalidInput => {
            BlobError::Invalid(text)
        }
        _ => BlobError::Unavailable(text),
    }
}

fn millis(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn meta(key: String, file: &fs::Metadata) -> io::Result<ObjectMeta> {
    Ok(ObjectMeta {
        key,
        size: file.len(),
        last_modified: millis(file.modified()?),
    })
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn write_all_vectored(file: &mut File, body: &[Bytes]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = body.iter().map(|bytes| IoSlice::new(bytes)).collect();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0); // drops empty slices
    while !rest.is_empty() {
        match file.write_vectored(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut rest, n),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Inner {
    fn prepare(&self, now: Timestamp) -> io::Result<()> {
        let temporary = self.root.join(TEMPORARY);
        self.make_durable(&temporary)?;
        for entry in fs::read_dir(&temporary)? {
            let entry = entry?;
            let Ok(age) = entry
                .metadata()
                .and_then(|file| Ok(now.since(millis(file.modified()?))))
            else {
                continue; // another process has just finished it
            };
            if Duration::from_millis(age) > LEFT_OVER {
                tracing::info!(file = %entry.path().display(), "removing a file that was never finished");
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Creates `directory` and its parents, and returns only when their entries are on the disk: one that exists
    /// may have been made a moment ago by somebody who has not forced it yet.
    fn make_durable(&self, directory: &Path) -> io::Result<()> {
        if self.durable.lock().contains(directory) {
            return Ok(());
        }
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        // From the root upwards only what is missing is ours to make.
        let inside = directory != self.root && directory.starts_with(&self.root);
        if let Some(parent) = parent.filter(|parent| inside || !parent.is_dir()) {
            self.make_durable(parent)?;
        }
        match fs::create_dir(directory) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let text = format!("{} is not a directory", directory.display());
                return Err(io::Error::new(ErrorKind::NotADirectory, text));
            }
            Err(error) => return Err(error),
        }
        match sync_directory(parent.unwrap_or(Path::new("."))) {
            // We may lack the right to read the root's parent; then the root was made by somebody else.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !inside => {}
            other => other?,
        }
        self.durable.lock().insert(directory.to_owned());
        Ok(())
    }

    /// Writes to the disk under a temporary name what `fill` has to say and hands it to `publish`, which gives it its own.
    fn write<T>(
        &self,
        key: &str,
        temporary: &str,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
        publish: impl FnOnce(&Path, &Path) -> io::Result<T>,
    ) -> io::Result<T> {
        let target = self.root.join(key);
        let directory = target.parent().unwrap_or(&self.root);
        self.make_durable(directory)?;
        let temporary = self.root.join(TEMPORARY).join(temporary);
        let written = File::create_new(&temporary).and_then(|mut file| {
            fill(&mut file)?;
            // After a failed fsync the pages may be lost but look clean: this file is never tried again.
            file.sync_data()
        });
        let published = written.and_then(|()| publish(&temporary, &target));
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(file = %temporary.display(), %error, "cannot remove a temporary file");
            }
            _ => {}
        }
        let durable = published.and_then(|done| sync_directory(directory).map(|()| done));
        durable.map_err(|error| match error.kind() {
            // A missing file while writing is a vanished store, not a missing object.
            ErrorKind::NotFound => io::Error::other(format!("{}: {error}", directory.display())),
            _ => error,
        })
    }

    fn list(&self, prefix: &str, start_after: &str, limit: usize) -> io::Result<Vec<ObjectMeta>> {
        let directory = prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
        let mut found = Vec::new();
        self.walk(directory, prefix, start_after, limit, &mut found)?;
        Ok(found)
    }

    fn walk(
        &self,
        directory: &str,
        prefix: &str,
        start_after: &str,
        limit: usize,
        found: &mut Vec<ObjectMeta>,
    ) -> io::Result<()> {
        let entries = match fs::read_dir(self.root.join(directory)) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // A directory sorts as "name/", which is how its objects' keys sort.
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
            let path = if directory.is_empty() {
                name
            } else {
                format!("{directory}/{name}")
            };
            names.push(format!("{path}{slash}"));
        }
        names.sort_unstable();
        for name in names {
            if found.len() >= limit {
                break;
            }
            match name.strip_suffix('/') {
                Some(path) => {
                    let wanted = name.starts_with(prefix) || prefix.starts_with(&name);
                    if wanted && (name.as_str() > start_after || start_after.starts_with(&name)) {
                        self.walk(path, prefix, start_after, limit, found)?;
                    }
                }
                None if name.starts_with(prefix) && name.as_str() > start_after => {
                    match fs::metadata(self.root.join(&name)) {
                        Ok(file) => found.push(meta(name, &file)?),
                        Err(error) if error.kind() == ErrorKind::NotFound => {} // deleted meanwhile
                        Err(error) => return Err(error),
                    }
                }
                None => {}
            }
        }
        Ok(())
    }
}

#[async_trait]
impl BlobStore for LocalStore {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        check_key(key)?;
        let (name, temporary) = (key.to_owned(), self.env.uuid().to_string());
        let rename = |from: &Path, to: &Path| fs::rename(from, to);
        let fill = move |file: &mut File| write_all_vectored(file, &body);
        self.run(key, move |inner| inner.write(&name, &temporary, fill, rename))
            .await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        check_key(key)?;
        let (name, temporary) = (key.to_owned(), self.env.uuid().to_string());
        let rename = |from: &Path, to: &Path| fs::rename(from, to);
        let path = path.to_owned();
        let fill = move |file: &mut File| {
            let copied = File::open(&path).and_then(|mut from| io::copy(&mut from, file));
            copied
                .map(drop)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
        };
        self.run(key, move |inner| inner.write(&name, &temporary, fill, rename))
            .await
    }

    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        check_key(key)?;
        let (name, temporary) = (key.to_owned(), self.env.uuid().to_string());
        // The directory is forced to the disk after a lost race too: the caller may act on what it finds there.
        let link = |from: &Path, to: &Path| match fs::hard_link(from, to) {
            Ok(()) => Ok(PutOutcome::Created),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(PutOutcome::Exists),
            Err(error) => Err(error),
        };
        let fill = move |file: &mut File| write_all_vectored(file, &body);
        self.run(key, move |inner| inner.write(&name, &temporary, fill, link))
            .await
    }

    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        check_key(key)?;
        let name = key.to_owned();
        self.run(key, move |inner| {
            fs::read(inner.root.join(&name)).map(Bytes::from)
        })
        .await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        check_key(key)?;
        let name = key.to_owned();
        let read = move |inner: &Inner| {
            let mut file = File::open(inner.root.join(&name))?;
            let there = file.metadata()?.len();
            let length = range.end.min(there).saturating_sub(range.start);
            let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
            file.seek(SeekFrom::Start(range.start))?;
            file.take(length).read_to_end(&mut bytes)?;
            Ok(Bytes::from(bytes))
        };
        self.run(key, read).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        check_key(key)?;
        let name = key.to_owned();
        let found = self.run(key, move |inner| {
            let file = fs::metadata(inner.root.join(&name))?;
            if file.is_dir() {
                Ok(None)
            } else {
                meta(name, &file).map(Some)
            }
        });
        match found.await {
            Err(BlobError::NotFound(_)) => Ok(None),
            other => other,
        }
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        check_prefix(prefix)?;
        let (start, after) = (prefix.to_owned(), start_after.unwrap_or_default().to_owned());
        self.run(prefix, move |inner| inner.list(&start, &after, limit))
            .await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let keys = keys.to_vec();
        let delete = move |inner: &Inner| {
            let mut failed = Vec::new();
            let mut directories = BTreeSet::new();
            for key in keys {
                let path = inner.root.join(&key);
                match fs::remove_file(&path) {
                    Ok(()) => directories.extend(path.parent().map(Path::to_owned)),
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => failed.push((key, failure(&path, &error))),
                }
            }
            directories
                .iter()
                .try_for_each(|directory| sync_directory(directory))?;
            Ok(failed)
        };
        self.run("", delete).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_left_over_file_is_removed_at_the_next_start_but_not_one_in_use() {
        let root = tempfile::tempdir().unwrap();
        let env = Env::production();
        LocalStore::open(root.path(), env.clone()).await.unwrap();
        let old = root.path().join(TEMPORARY).join("old");
        let young = root.path().join(TEMPORARY).join("young");
        File::create(&young).unwrap();
        let long_ago = UNIX_EPOCH + Duration::from_secs(1);
        File::create(&old).unwrap().set_modified(long_ago).unwrap();
        let store = LocalStore::open(root.path(), env).await.unwrap();
        assert!(!old.exists());
        assert!(young.exists());
        assert_eq!(
            store.list("", None, 10).await.unwrap(),
            vec![],
            "temporary files are no objects"
        );
    }

    #[tokio::test]
    async fn errors_name_the_path() {
        let root = tempfile::tempdir().unwrap();
        let env = Env::production();
        let file = root.path().join("file");
        File::create(&file).unwrap();
        let error = LocalStore::open(&file, env.clone()).await.unwrap_err();
        assert!(
            matches!(&error, BlobError::Invalid(text) if text.contains("file")),
            "{error}"
        );

        let store = LocalStore::open(&root.path().join("new/store"), env)
            .await
            .unwrap();
        store.put("a", vec![Bytes::from_static(b"x")]).await.unwrap();
        let error = store.put("a/b", vec![]).await.unwrap_err();
        assert!(
            matches!(&error, BlobError::Invalid(text) if text.contains("store/a")),
            "{error}"
        );
        assert!(store.get("../file").await.is_err());
    }
}
