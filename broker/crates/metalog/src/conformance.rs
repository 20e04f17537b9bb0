//! What every engine must do, as one suite.

use std::sync::Arc;

use bytes::Bytes;
use env::Env;
use futures::TryStreamExt;
use futures::future::join_all;

use crate::{
    Epoch, LogError, LogOffset, MAX_ENTRY_BYTES, MetadataLog, Owner, Slot, SnapshotBody, SnapshotFile,
};

/// The most that a reader of a snapshot has to take at a time, in bytes.
const MAX_PIECE: usize = 8 << 20;

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

/// Gives a handle to the log of a name, as another process would get it: handles share nothing but the log.
pub type OpenLog<'a> = &'a (dyn Fn(&str) -> Arc<dyn MetadataLog> + Send + Sync);

fn said(error: LogError) -> String {
    error.to_string()
}

fn owner(env: &Env, node_id: i32) -> Owner {
    Owner {
        node_id,
        incarnation: env.uuid(),
        address: format!("node-{node_id}:9190"),
    }
}

fn entries(texts: &[&str]) -> Vec<Bytes> {
    texts
        .iter()
        .map(|text| Bytes::copy_from_slice(text.as_bytes()))
        .collect()
}

/// Runs the suite on logs of fresh names. `Err` says what does not hold.
pub async fn run(logs: OpenLog<'_>, env: &Env) -> Result<(), String> {
    let name = |part: &str| format!("conformance-{}-{part}", env.uuid().simple());
    append_and_read(logs, env, &name("append")).await?;
    fencing(logs, env, &name("fence")).await?;
    concurrent_openers(logs, env, &name("openers")).await?;
    snapshots_and_trim(logs, env, &name("snapshots")).await?;
    bad_requests(logs, env, &name("bad")).await
}

async fn all(log: &dyn MetadataLog, mut from: LogOffset) -> Result<Vec<Slot>, String> {
    let mut slots = Vec::new();
    loop {
        let more = log.read(from, 1 << 20).await.map_err(said)?;
        let Some(last) = more.last() else { return Ok(slots) };
        from = last.offset.next();
        slots.extend(more);
    }
}

async fn append_and_read(logs: OpenLog<'_>, env: &Env, name: &str) -> Result<(), String> {
    let log = logs(name);
    ensure!(
        log.owner().await.map_err(said)?.is_none(),
        "a log that was never opened has an owner"
    );
    ensure!(
        log.read(LogOffset(0), 1).await.map_err(said)?.is_empty(),
        "a log that was never opened has slots"
    );
    ensure!(
        log.snapshot().await.map_err(said)?.is_none(),
        "a log that was never opened has a snapshot"
    );

    let me = owner(env, 1);
    let mut opened = log.open(me.clone()).await.map_err(said)?;
    ensure!(
        opened.epoch == Epoch(1) && opened.writer.epoch() == Epoch(1),
        "the first epoch is {}",
        opened.epoch
    );
    ensure!(
        opened.log_start == LogOffset(0) && opened.snapshot.is_none(),
        "a new log does not start empty"
    );
    ensure!(
        opened.tail == opened.writer.tail(),
        "tail {} is not the writer's",
        opened.tail
    );
    let found = logs(name).owner().await.map_err(said)?;
    ensure!(found == Some((Epoch(1), me)), "the owner is {found:?}");

    let mut expected = Vec::new();
    for group in [&["a"][..], &["", "b", "a longer entry"], &["c"]] {
        let offset = opened.writer.append(entries(group)).await.map_err(said)?;
        ensure!(
            offset.0 == opened.tail.0 + expected.len() as u64,
            "offsets are not dense: {offset}"
        );
        expected.push(Slot {
            offset,
            epoch: Epoch(1),
            entries: entries(group),
        });
    }
    let reader = logs(name);
    for log in [&log, &reader] {
        let read = all(&**log, opened.tail).await?;
        ensure!(read == expected, "read gives {read:?} instead of {expected:?}");
        let whole = all(&**log, LogOffset(0)).await?;
        let dense = whole
            .iter()
            .enumerate()
            .all(|(i, slot)| slot.offset.0 == i as u64);
        ensure!(dense, "offsets from 0 are not dense: {whole:?}");
    }
    let one = reader.read(opened.tail, 1).await.map_err(said)?;
    ensure!(one.len() == 1, "max_bytes of 1 gives {} slots", one.len());
    // A follower at the end sees nothing, then the next slot.
    let tail = opened.writer.tail();
    ensure!(
        reader.read(tail, 1).await.map_err(said)?.is_empty(),
        "there is a slot behind the last one"
    );
    opened.writer.append(entries(&["d"])).await.map_err(said)?;
    let next = reader.read(tail, 1).await.map_err(said)?;
    ensure!(
        next.len() == 1 && next.iter().all(|slot| slot.offset == tail),
        "a follower reads {next:?}"
    );
    opened.writer.check().await.map_err(said)
}

async fn fencing(logs: OpenLog<'_>, env: &Env, name: &str) -> Result<(), String> {
    let (first, second) = (logs(name), logs(name));
    let mut old = first.open(owner(env, 1)).await.map_err(said)?;
    let kept = old.writer.append(entries(&["kept"])).await.map_err(said)?;
    let new_owner = owner(env, 2);
    let mut new = second.open(new_owner.clone()).await.map_err(said)?;
    ensure!(new.epoch > old.epoch, "epoch {} does not grow", new.epoch);
    ensure!(
        new.tail > kept,
        "the new tail {} hides an acknowledged slot",
        new.tail
    );
    let fenced = LogError::Fenced {
        epoch: new.epoch,
        owner: Some(new_owner),
    };
    for round in 0..3 {
        let refused = old.writer.append(entries(&["lost"])).await;
        ensure!(
            refused == Err(fenced.clone()),
            "append {round} of a fenced writer gives {refused:?}"
        );
    }
    let refused = old.writer.check().await;
    ensure!(
        refused == Err(fenced),
        "check of a fenced writer gives {refused:?}"
    );
    let offset = new.writer.append(entries(&["new"])).await.map_err(said)?;
    ensure!(
        offset == new.tail,
        "the first append of a new writer is at {offset}"
    );
    let texts: Vec<Bytes> = all(&*logs(name), LogOffset(0))
        .await?
        .into_iter()
        .flat_map(|slot| slot.entries)
        .collect();
    ensure!(texts == entries(&["kept", "new"]), "the log holds {texts:?}");

    // A check alone finds out, too, and the same process may take over from itself.
    let again = second.open(owner(env, 2)).await.map_err(said)?;
    let refused = new.writer.check().await;
    let named = matches!(&refused, Err(LogError::Fenced { epoch, owner: Some(_) }) if *epoch == again.epoch);
    ensure!(named, "check of a fenced writer gives {refused:?}");
    Ok(())
}

async fn concurrent_openers(logs: OpenLog<'_>, env: &Env, name: &str) -> Result<(), String> {
    let open = async |node: i32| {
        let log = logs(name);
        let mut opened = log.open(owner(env, node)).await?;
        let text = format!("of {node}");
        let offset = opened.writer.append(entries(&[&text])).await?;
        Ok::<_, LogError>((opened.epoch, offset, Bytes::from(text)))
    };
    let results = join_all((0..6).map(open)).await;
    let mut won = Vec::new();
    for result in results {
        match result {
            Ok(done) => won.push(done),
            Err(LogError::Fenced { .. }) => {}
            Err(error) => return Err(format!("a concurrent opener fails: {error}")),
        }
    }
    ensure!(!won.is_empty(), "no concurrent opener got through");
    won.sort();
    let distinct = won.iter().map(|(epoch, ..)| epoch).is_sorted_by(|a, b| a < b);
    ensure!(distinct, "two writers have the same epoch: {won:?}");
    let slots = all(&*logs(name), LogOffset(0)).await?;
    ensure!(
        slots.iter().map(|slot| slot.epoch).is_sorted(),
        "epochs go back: {slots:?}"
    );
    for (epoch, offset, text) in won {
        let slot = slots.iter().find(|slot| slot.offset == offset);
        let there = slot.is_some_and(|slot| slot.epoch == epoch && slot.entries == [text.clone()]);
        ensure!(
            there,
            "acknowledged entry {text:?} at {offset} of epoch {epoch} is not there: {slots:?}"
        );
    }
    Ok(())
}

async fn snapshots_and_trim(logs: OpenLog<'_>, env: &Env, name: &str) -> Result<(), String> {
    let log = logs(name);
    let mut opened = log.open(owner(env, 1)).await.map_err(said)?;
    for number in 0..20 {
        opened
            .writer
            .append(entries(&[&format!("entry {number}")]))
            .await
            .map_err(said)?;
    }
    let offset = LogOffset(11);
    // More than one piece of any sensible size.
    let body = vec![Bytes::from(vec![7; 9 << 20]), Bytes::from_static(b"end")];
    let snapshot = log
        .put_snapshot(offset, body.clone().into())
        .await
        .map_err(said)?;
    ensure!(
        log.snapshot().await.map_err(said)?.is_none(),
        "a snapshot counts before it is installed"
    );
    opened
        .writer
        .install_snapshot(snapshot.clone(), LogOffset(8))
        .await
        .map_err(said)?;
    let other = logs(name);
    ensure!(
        other.snapshot().await.map_err(said)? == Some(snapshot.clone()),
        "the installed snapshot is not found"
    );
    let read: Vec<Bytes> = other.get_snapshot(&snapshot).try_collect().await.map_err(said)?;
    ensure!(read.concat() == body.concat(), "a snapshot is not read back");
    ensure!(
        read.iter().all(|piece| piece.len() <= MAX_PIECE),
        "a snapshot comes in one piece"
    );
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, body.concat()).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = SnapshotBody::File(SnapshotFile::new(path.clone()));
    let stored = log.put_snapshot(offset, file).await.map_err(said)?;
    ensure!(
        (stored.size, stored.sha256, stored.chain) == (snapshot.size, snapshot.sha256, snapshot.chain),
        "the snapshot of a file is another: {stored:?}, {snapshot:?}"
    );
    ensure!(!path.exists(), "the file of a snapshot is left behind");
    let read: Vec<Bytes> = other.get_snapshot(&stored).try_collect().await.map_err(said)?;
    ensure!(
        read.concat() == body.concat(),
        "the snapshot of a file is not read back"
    );
    for from in [0, 7] {
        let refused = other.read(LogOffset(from), 1).await;
        let trimmed = refused
            == Err(LogError::Trimmed {
                log_start: LogOffset(8),
            });
        ensure!(trimmed, "a read below the start gives {refused:?}");
    }
    let rest = all(&*other, LogOffset(8)).await?;
    ensure!(
        rest.len() as u64 == opened.writer.tail().0 - 8,
        "{} slots are left",
        rest.len()
    );
    log.sweep().await.map_err(said)?;
    ensure!(
        all(&*logs(name), LogOffset(8)).await? == rest,
        "a sweep has taken what is needed"
    );

    // The next leader starts there, and the log may be trimmed up to its very end.
    let mut next = other.open(owner(env, 2)).await.map_err(said)?;
    ensure!(
        next.snapshot == Some(snapshot) && next.log_start == LogOffset(8),
        "a new leader starts elsewhere"
    );
    let end = next.writer.tail();
    let snapshot = other.put_snapshot(end, vec![].into()).await.map_err(said)?;
    next.writer
        .install_snapshot(snapshot.clone(), end)
        .await
        .map_err(said)?;
    ensure!(
        other
            .get_snapshot(&snapshot)
            .try_all(async |piece| piece.is_empty())
            .await
            .map_err(said)?,
        "an empty snapshot has bytes"
    );
    let third = logs(name);
    let mut last = third.open(owner(env, 3)).await.map_err(said)?;
    ensure!(
        last.log_start == end && last.tail == end.next(),
        "a log that is trimmed to its end opens at {}",
        last.tail
    );
    let offset = last.writer.append(entries(&["after"])).await.map_err(said)?;
    let read = all(&*logs(name), end).await?;
    ensure!(
        read.last().is_some_and(|slot| slot.offset == offset),
        "a log goes on after a trim to its end: {read:?}"
    );
    Ok(())
}

async fn bad_requests(logs: OpenLog<'_>, env: &Env, name: &str) -> Result<(), String> {
    let log = logs(name);
    let mut opened = log.open(owner(env, 1)).await.map_err(said)?;
    let invalid = |result: Result<(), LogError>| matches!(result, Err(LogError::Invalid(_)));
    let writer = &mut opened.writer;
    ensure!(
        invalid(writer.append(vec![]).await.map(|_| ())),
        "an empty append is taken"
    );
    let large = vec![Bytes::from(vec![0; 1 << 20]); 64];
    for large in [large, vec![Bytes::from(vec![0; MAX_ENTRY_BYTES + 1])]] {
        let refused = writer.append(large).await;
        ensure!(
            matches!(refused, Err(LogError::TooLarge { .. })),
            "an append that is too large gives {refused:?}"
        );
    }
    writer
        .append(vec![Bytes::from(vec![0; MAX_ENTRY_BYTES])])
        .await
        .map_err(said)?;
    for number in 0..4 {
        writer
            .append(entries(&[&format!("{number}")]))
            .await
            .map_err(said)?;
    }
    ensure!(
        invalid(log.put_snapshot(LogOffset(99), vec![].into()).await.map(|_| ())),
        "a snapshot of the future is taken"
    );
    let snapshot = log
        .put_snapshot(LogOffset(3), vec![].into())
        .await
        .map_err(said)?;
    let install = writer.install_snapshot(snapshot.clone(), LogOffset(4)).await;
    ensure!(invalid(install), "a log start behind the snapshot is taken");
    writer
        .install_snapshot(snapshot, LogOffset(2))
        .await
        .map_err(said)?;
    let older = log
        .put_snapshot(LogOffset(2), vec![].into())
        .await
        .map_err(said)?;
    ensure!(
        invalid(writer.install_snapshot(older, LogOffset(0)).await),
        "an older snapshot is taken"
    );
    // None of that has harmed the writer.
    writer.append(entries(&["good"])).await.map(|_| ()).map_err(said)
}
