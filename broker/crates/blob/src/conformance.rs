//! What every store must do, as one suite: run against each engine by the tests of this crate and of `e2e`.

use bytes::Bytes;
use env::Env;
use futures::future::join_all;

use crate::{BlobError, BlobStore, PutOutcome};

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

fn body(text: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_bytes())]
}

fn said(error: BlobError) -> String {
    error.to_string()
}

/// Runs the suite below a fresh prefix of `store` and deletes what it made. `Err` says what does not hold.
pub async fn run(store: &dyn BlobStore, env: &Env) -> Result<(), String> {
    let base = format!("conformance/{}", env.uuid());
    objects(store, &format!("{base}/objects")).await?;
    ranges(store, &format!("{base}/ranges")).await?;
    large_bodies(store, &format!("{base}/large")).await?;
    create_if_absent(store, &format!("{base}/create")).await?;
    lists(store, &format!("{base}/lists")).await?;
    deletes(store, &format!("{base}/deletes")).await?;
    bad_keys(store).await?;
    let left = store.list(&base, None, 10_000).await.map_err(said)?;
    let left: Vec<String> = left.into_iter().map(|object| object.key).collect();
    let failed = store.delete_many(&left).await.map_err(said)?;
    ensure!(failed.is_empty(), "objects cannot be deleted: {failed:?}");
    let left = store.list(&base, None, 1).await.map_err(said)?;
    ensure!(left.is_empty(), "deleted objects are listed: {left:?}");
    Ok(())
}

async fn objects(store: &dyn BlobStore, base: &str) -> Result<(), String> {
    let key = format!("{base}/a");
    ensure!(
        store.get(&key).await == Err(BlobError::NotFound(not_found(store, &key).await?)),
        "a missing object"
    );
    ensure!(
        store.head(&key).await.map_err(said)?.is_none(),
        "head of a missing object finds one"
    );
    store.put(&key, body("one")).await.map_err(said)?;
    store.put(&key, body("second")).await.map_err(said)?;
    ensure!(
        store.get(&key).await.map_err(said)? == "second",
        "put does not replace"
    );
    let head = store.head(&key).await.map_err(said)?;
    ensure!(
        head.as_ref()
            .is_some_and(|head| head.size == 6 && head.key == key),
        "head says {head:?}"
    );
    ensure!(
        head.is_some_and(|head| head.last_modified.0 > 0),
        "head knows no time"
    );
    let empty = format!("{base}/empty");
    store.put(&empty, vec![]).await.map_err(said)?;
    ensure!(
        store.get(&empty).await.map_err(said)?.is_empty(),
        "an empty object has bytes"
    );
    let slices = vec![
        Bytes::new(),
        Bytes::from_static(b"x"),
        Bytes::new(),
        Bytes::from_static(b"yz"),
        Bytes::new(),
    ];
    store.put(&empty, slices).await.map_err(said)?;
    ensure!(
        store.get(&empty).await.map_err(said)? == "xyz",
        "slices are not joined in order"
    );
    Ok(())
}

/// The name that the store gives a missing object contains its key.
async fn not_found(store: &dyn BlobStore, key: &str) -> Result<String, String> {
    match store.get_range(key, 0..1).await {
        Err(BlobError::NotFound(name)) if name.ends_with(key) => Ok(name),
        other => Err(format!("a range of a missing object gives {other:?}")),
    }
}

async fn ranges(store: &dyn BlobStore, base: &str) -> Result<(), String> {
    let key = format!("{base}/digits");
    store.put(&key, body("0123456789")).await.map_err(said)?;
    for (range, expected) in [
        (0..10, "0123456789"),
        (3..5, "34"),
        (8..100, "89"),
        (10..20, ""),
        (50..60, ""),
        (4..4, ""),
    ] {
        let bytes = store.get_range(&key, range.clone()).await.map_err(said)?;
        ensure!(
            bytes == expected,
            "range {range:?} gives {bytes:?} instead of {expected:?}"
        );
    }
    let empty = format!("{base}/empty");
    store.put(&empty, vec![]).await.map_err(said)?;
    ensure!(
        store.get_range(&empty, 0..10).await.map_err(said)?.is_empty(),
        "a range of an empty object has bytes"
    );
    Ok(())
}

async fn large_bodies(store: &dyn BlobStore, base: &str) -> Result<(), String> {
    // More slices than one vectored write takes (1024), of odd sizes, 5 MiB together.
    let slices: Vec<Bytes> = (0..2500u32)
        .map(|i| Bytes::from(vec![i.to_le_bytes()[0]; 2000 + (i as usize % 97)]))
        .collect();
    let whole = slices.concat();
    let (first, second) = (format!("{base}/put"), format!("{base}/create"));
    store.put(&first, slices.clone()).await.map_err(said)?;
    ensure!(
        store.get(&first).await.map_err(said)? == whole,
        "a large put is not read back"
    );
    let created = store.put_if_absent(&second, slices.clone()).await.map_err(said)?;
    ensure!(created == PutOutcome::Created, "a large create says {created:?}");
    ensure!(
        store.get(&second).await.map_err(said)? == whole,
        "a large create is not read back"
    );
    let path = std::env::temp_dir().join(base.replace('/', "-"));
    std::fs::write(&path, &whole).map_err(|error| format!("{}: {error}", path.display()))?;
    let put = store.put_file(&first, &path).await.map_err(said);
    let _ = std::fs::remove_file(&path);
    put?;
    ensure!(
        store.get(&first).await.map_err(said)? == whole,
        "a file is not read back"
    );
    ensure!(
        store.put_file(&first, &path).await.is_err(),
        "a file that is not there is stored"
    );
    ensure!(
        store.get(&first).await.map_err(said)? == whole,
        "a file that is not there replaces an object"
    );
    // A loser with a large body may be cut off while it sends, but must never win.
    match store.put_if_absent(&second, slices).await {
        Ok(PutOutcome::Exists) => Ok(()),
        Err(error) if error.outcome_unknown() => Ok(()),
        other => Err(format!("a second large create says {other:?}")),
    }
}

async fn create_if_absent(store: &dyn BlobStore, base: &str) -> Result<(), String> {
    for round in 0..20 {
        let key = format!("{base}/{round}");
        let bodies: Vec<String> = (0..8)
            .map(|writer| format!("writer {writer} of {round}"))
            .collect();
        let outcomes = join_all(bodies.iter().map(|text| store.put_if_absent(&key, body(text)))).await;
        let mut winner = None;
        for (outcome, text) in outcomes.into_iter().zip(&bodies) {
            if outcome.map_err(said)? == PutOutcome::Created {
                ensure!(winner.is_none(), "{key} was created twice");
                winner = Some(text);
            }
        }
        let Some(winner) = winner else {
            return Err(format!("nobody created {key}"));
        };
        ensure!(
            store.get(&key).await.map_err(said)? == *winner,
            "{key} does not hold what its creator wrote"
        );
    }
    let key = format!("{base}/again");
    store.put(&key, body("old")).await.map_err(said)?;
    let outcome = store.put_if_absent(&key, body("new")).await.map_err(said)?;
    ensure!(
        outcome == PutOutcome::Exists,
        "create over an object says {outcome:?}"
    );
    ensure!(
        store.get(&key).await.map_err(said)? == "old",
        "create has replaced an object"
    );
    store
        .delete_many(std::slice::from_ref(&key))
        .await
        .map_err(said)?;
    let outcome = store.put_if_absent(&key, body("new")).await.map_err(said)?;
    ensure!(
        outcome == PutOutcome::Created,
        "create after a delete says {outcome:?}"
    );
    Ok(())
}

async fn lists(store: &dyn BlobStore, base: &str) -> Result<(), String> {
    // Fixed depth and width, as all our keys: stores disagree on the order of '/' and '-'.
    let key = |group: u32, number: u32| format!("{base}/{group:03}/{number:020}");
    for number in [3, 1, 2, 10, 9] {
        for group in [2, 1] {
            store.put(&key(group, number), body("x")).await.map_err(said)?;
        }
    }
    let list = async |prefix: String, after: Option<String>, limit| {
        let found = store.list(&prefix, after.as_deref(), limit).await.map_err(said)?;
        Ok::<_, String>(found.into_iter().map(|object| object.key).collect::<Vec<_>>())
    };
    let group = |group, numbers: &[u32]| numbers.iter().map(|n| key(group, *n)).collect::<Vec<_>>();
    let all = [group(1, &[1, 2, 3, 9, 10]), group(2, &[1, 2, 3, 9, 10])].concat();
    let cases = [
        (format!("{base}/"), None, 100, all.clone()),
        (format!("{base}/"), None, 10, all.clone()),
        (format!("{base}/"), None, 0, vec![]),
        (format!("{base}/001/"), None, 100, group(1, &[1, 2, 3, 9, 10])),
        (format!("{base}/001/"), None, 2, group(1, &[1, 2])),
        (format!("{base}/001/"), Some(key(1, 2)), 2, group(1, &[3, 9])),
        (format!("{base}/001/"), Some(key(1, 5)), 100, group(1, &[9, 10])),
        (format!("{base}/001/"), Some(key(1, 10)), 100, vec![]),
        (
            format!("{base}/"),
            Some(key(1, 9)),
            3,
            [group(1, &[10]), group(2, &[1, 2])].concat(),
        ),
        (
            format!("{base}/002/"),
            Some(key(1, 1)),
            100,
            group(2, &[1, 2, 3, 9, 10]),
        ),
        (
            format!("{base}/001/0000000000000000000"),
            None,
            100,
            group(1, &[1, 2, 3, 9]),
        ),
        (format!("{base}/003/"), None, 100, vec![]),
    ];
    for (prefix, after, limit, expected) in cases {
        let found = list(prefix.clone(), after.clone(), limit).await?;
        ensure!(
            found == expected,
            "list {prefix} after {after:?} limit {limit} gives {found:?}"
        );
    }
    let found = store.list(&key(1, 1), None, 1).await.map_err(said)?;
    ensure!(
        found.iter().all(|o| o.size == 1 && o.last_modified.0 > 0),
        "a list without size or time: {found:?}"
    );
    Ok(())
}

async fn deletes(store: &dyn BlobStore, base: &str) -> Result<(), String> {
    let mut keys: Vec<String> = (0..1100).map(|number| format!("{base}/{number:04}")).collect();
    for some in keys.chunks(50) {
        for done in join_all(some.iter().map(|key| store.put(key, body("x")))).await {
            done.map_err(said)?;
        }
    }
    let listed = store.list(&format!("{base}/"), None, 5000).await.map_err(said)?;
    ensure!(
        listed.len() == keys.len(),
        "{} of {} objects are listed",
        listed.len(),
        keys.len()
    );
    let kept = keys.pop();
    keys.push(format!("{base}/never-there"));
    let failed = store.delete_many(&keys).await.map_err(said)?;
    ensure!(failed.is_empty(), "delete fails: {failed:?}");
    let listed = store.list(&format!("{base}/"), None, 5000).await.map_err(said)?;
    ensure!(
        listed.iter().map(|o| Some(&o.key)).eq([kept.as_ref()]),
        "after delete there is {listed:?}"
    );
    ensure!(
        store.delete_many(&[]).await.map_err(said)?.is_empty(),
        "deleting nothing fails"
    );
    Ok(())
}

async fn bad_keys(store: &dyn BlobStore) -> Result<(), String> {
    for key in ["", "/a", "a/../b", ".tmp/x", "a//b"] {
        let refused = matches!(store.put(key, body("x")).await, Err(BlobError::Invalid(_)));
        ensure!(refused, "key {key:?} is not refused");
    }
    Ok(())
}
