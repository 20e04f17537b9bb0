use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::url::Url;
use env::Env;

use crate::credentials::FileCredentials;
use crate::key::check_key;
use crate::s3::{Location, S3Store};
use crate::{BlobError, LocalStore, MemoryStore, Metered, Metrics, Retrying, SharedStore};

/// A store and its counters.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The store, with retries.
    pub store: SharedStore,
    /// The same without: for those who must not wait for each other, and wrap it in a [`Retrying`] each.
    pub bare: SharedStore,
    /// Counts of the requests it made.
    pub metrics: Arc<Metrics>,
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    Memory,
    Local(PathBuf),
    S3(Location),
}

/// Opens the store that `url` names:
///
/// - `file:///directory`
/// - `s3://bucket/prefix?region=R&endpoint=http://host:port&path_style=true`: without `endpoint` it is AWS
/// - `memory://`: a new, empty store
///
/// `credentials_dir` (S3) holds the files `access_key_id`, `secret_access_key` and perhaps `session_token`; without it
/// the AWS default chain is asked (environment, profile, web identity, instance). No request is made yet: see [`crate::probe`].
pub async fn open(url: &str, credentials_dir: Option<&Path>, env: Env) -> Result<Opened, BlobError> {
    let place = parse(url)?;
    let raw: SharedStore = match place {
        Place::Memory => Arc::new(MemoryStore::new(env.clone())),
        Place::Local(directory) => Arc::new(LocalStore::open(&directory, env.clone()).await?),
        Place::S3(location) => {
            let credentials = credentials_dir.map(|directory| FileCredentials::new(directory, env.clone()));
            Arc::new(S3Store::open(location, credentials, env.clone()).await?)
        }
    };
    let metrics = Arc::new(Metrics::default());
    let bare: SharedStore = Arc::new(Metered::new(raw, env.clone(), metrics.clone()));
    Ok(Opened {
        store: Arc::new(Retrying::new(bare.clone(), env)),
        bare,
        metrics,
    })
}

fn invalid(text: String) -> BlobError {
    BlobError::Invalid(format!("object_store.url: {text}"))
}

fn parse(text: &str) -> Result<Place, BlobError> {
    let url = Url::parse(text).map_err(|error| invalid(format!("{text:?}: {error}")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid(
            "no credentials here: use object_store.credentials_dir".to_owned(),
        ));
    }
    if url.fragment().is_some() {
        return Err(invalid(format!("{text:?}: unexpected #")));
    }
    match url.scheme() {
        "s3" => parse_s3(&url).map(Place::S3),
        scheme @ ("file" | "memory") => {
            if let Some((name, _)) = url.query_pairs().next() {
                return Err(invalid(format!("unknown parameter {name} for {scheme}://")));
            }
            if scheme == "memory" {
                return Ok(Place::Memory);
            }
            let path = url
                .to_file_path()
                .ok()
                .filter(|path| text.starts_with("file:///") && path.parent().is_some());
            path.map(Place::Local)
                .ok_or_else(|| invalid(format!("{text:?}: want file:///absolute/directory")))
        }
        scheme => Err(invalid(format!(
            "unknown scheme {scheme}: want s3, file or memory"
        ))),
    }
}

fn parse_s3(url: &Url) -> Result<Location, BlobError> {
    let bucket = url
        .host_str()
        .filter(|_| url.port().is_none())
        .unwrap_or_default()
        .to_owned();
    let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
    if bucket.is_empty() || !bucket.chars().all(name) {
        return Err(invalid(format!(
            "bad bucket name {bucket:?}: want s3://bucket/prefix"
        )));
    }
    let prefix = url.path().trim_matches('/').to_owned();
    if !prefix.is_empty() {
        check_key(&prefix).map_err(|_| invalid(format!("bad prefix {prefix:?}")))?;
    }
    let mut location = Location {
        bucket,
        prefix,
        endpoint: None,
        region: None,
        path_style: false,
    };
    for (name, value) in url.query_pairs() {
        match &*name {
            "endpoint" => {
                let good = Url::parse(&value)
                    .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
                if !good {
                    return Err(invalid(format!(
                        "parameter endpoint: {value:?} is not http(s)://host:port"
                    )));
                }
                location.endpoint = Some(value.into_owned());
            }
            "region" if value.is_empty() => return Err(invalid("parameter region is empty".to_owned())),
            "region" => location.region = Some(value.into_owned()),
            "path_style" => {
                location.path_style = value.parse().map_err(|_| {
                    invalid(format!(
                        "parameter path_style: {value:?} is neither true nor false"
                    ))
                })?;
            }
            other => {
                return Err(invalid(format!(
                    "unknown parameter {other}: want endpoint, region or path_style"
                )));
            }
        }
    }
    Ok(location)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        assert_eq!(
            parse("file:///var/lib/x").unwrap(),
            Place::Local("/var/lib/x".into())
        );
        assert_eq!(parse("memory://").unwrap(), Place::Memory);
        let plain = Location {
            bucket: "b-1".to_owned(),
            prefix: String::new(),
            endpoint: None,
            region: None,
            path_style: false,
        };
        assert_eq!(parse("s3://b-1").unwrap(), Place::S3(plain.clone()));
        let full = parse("s3://b-1/a/b/?region=r&endpoint=http://127.0.0.1:7070&path_style=true").unwrap();
        let expected = Location {
            prefix: "a/b".to_owned(),
            endpoint: Some("http://127.0.0.1:7070".to_owned()),
            region: Some("r".to_owned()),
            path_style: true,
            ..plain
        };
        assert_eq!(full, Place::S3(expected));
    }

    #[test]
    fn bad_urls_name_what_is_wrong() {
        let cases = [
            ("", "object_store.url"),
            ("/tmp", "object_store.url"),
            ("ftp://x", "scheme ftp"),
            ("file://host/x", "file:///"),
            ("file:x", "file:///"),
            ("file:///", "file:///"),
            ("file:///x?sync=no", "sync"),
            ("s3://", "bucket"),
            ("s3://b:80/x", "bucket"),
            ("s3://b/../x y", "prefix"),
            ("s3://key:secret@b", "credentials_dir"),
            ("s3://b?pathstyle=true", "pathstyle"),
            ("s3://b?path_style=yes", "path_style"),
            ("s3://b?endpoint=localhost:80", "endpoint"),
            ("s3://b?region=", "region"),
        ];
        for (url, named) in cases {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(named), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }
}
