use crate::BlobError;

/// The longest key; leaves room for a bucket prefix below S3's limit of 1024 bytes.
const MAX_KEY: usize = 768;
/// The longest part of a key: the limit of a file name.
const MAX_PART: usize = 255;

fn allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '=' | '-')
}

/// Checks the rules of the crate doc. Keys are ours, so a bad one is a mistake in the program or an attack on
/// the local store (`..`); both must end here.
pub(crate) fn check_key(key: &str) -> Result<(), BlobError> {
    let good = key.len() <= MAX_KEY
        && key.split('/').all(|part| {
            !part.is_empty() && part.len() <= MAX_PART && !part.starts_with('.') && part.chars().all(allowed)
        });
    if good {
        Ok(())
    } else {
        Err(BlobError::Invalid(format!("bad object key {key:?}")))
    }
}

/// As [`check_key`] for the start of a key, which may be empty or end anywhere.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), BlobError> {
    let (directory, last) = prefix
        .rsplit_once('/')
        .map_or((None, prefix), |(d, l)| (Some(d), l));
    if let Some(directory) = directory {
        check_key(directory)?;
    }
    if last.is_empty() { Ok(()) } else { check_key(last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_cannot_leave_the_store() {
        for good in ["a", "meta/shard-0/log/00000000000000000001", "wal/3f/a.b_c=d"] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/a",
            "a/",
            "a//b",
            "..",
            "a/../b",
            ".tmp/a",
            "a b",
            "a\0",
            "ä",
            "a\\b",
            &"x".repeat(256),
        ] {
            assert!(check_key(bad).is_err(), "{bad}");
        }
        for good in ["", "a", "a/", "a/b"] {
            assert_eq!(check_prefix(good), Ok(()), "{good}");
        }
        for bad in ["/", "../", "a/..", "a//"] {
            assert!(check_prefix(bad).is_err(), "{bad}");
        }
    }
}
