//! What a log goes through in the tests of faults, and what must hold of it afterwards, whatever the engine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Env;
use futures::TryStreamExt;
use metalog::{Epoch, LogError, LogOffset, MetadataLog, Opened, Owner};
use parking_lot::Mutex;

/// What happened, in the order in which it was known.
#[derive(Default)]
pub struct History {
    pub next_entry: u64,
    pub acknowledged: Vec<(Epoch, LogOffset, Vec<u64>)>,
    pub takeovers: Vec<(Epoch, LogOffset)>,
    /// States that leaders have rebuilt, and how many acknowledgements there were when they began.
    pub states: Vec<(usize, Vec<u64>)>,
    pub crashes: usize,
    pub fenced: usize,
    pub trims: usize,
    pub swept: usize,
}

pub type SharedHistory = Arc<Mutex<History>>;

pub fn encode(numbers: &[u64]) -> Vec<Bytes> {
    numbers
        .iter()
        .map(|number| Bytes::copy_from_slice(&number.to_be_bytes()))
        .collect()
}

pub fn decode(bytes: &[u8], into: &mut Vec<u64>) {
    into.extend(
        bytes
            .chunks(8)
            .map(|chunk| u64::from_be_bytes(chunk.try_into().unwrap())),
    );
}

/// Rebuilds the state as a new leader or a reader does.
pub async fn rebuild(log: &dyn MetadataLog, opened: &Opened) -> Result<Vec<u64>, LogError> {
    let mut state = Vec::new();
    let mut at = opened.log_start;
    if let Some(snapshot) = &opened.snapshot {
        let pieces: Vec<Bytes> = log.get_snapshot(snapshot).try_collect().await?;
        decode(&pieces.concat(), &mut state);
        at = snapshot.offset;
    }
    while at < opened.tail {
        for slot in log.read(at, 1000).await? {
            assert_eq!(slot.offset, at, "slots are dense");
            slot.entries.iter().for_each(|entry| decode(entry, &mut state));
            at = at.next();
        }
    }
    Ok(state)
}

/// A `term` of a process that is killed after `life`; a log that is broken ends the test.
pub async fn live(
    env: &Env,
    life: Duration,
    term: impl Future<Output = Result<(), LogError>>,
    history: &SharedHistory,
) {
    match env.timeout(life, term).await {
        Err(_) => history.lock().crashes += 1,
        Ok(Err(LogError::Fenced { .. })) => history.lock().fenced += 1,
        Ok(Err(error @ (LogError::Corrupt(_) | LogError::Invalid(_) | LogError::Closed))) => {
            panic!("{error}")
        }
        // A snapshot may be swept while a slow leader loads it; it starts again.
        Ok(_) => {}
    }
}

/// One term of a leader: take over, append, trim, rest for up to `rest` now and then, until something ends it.
pub async fn lead(
    log: &dyn MetadataLog,
    owner: Owner,
    env: &Env,
    history: &SharedHistory,
    rest: Duration,
) -> Result<(), LogError> {
    let known = history.lock().acknowledged.len();
    let mut opened = log.open(owner).await?;
    history.lock().takeovers.push((opened.epoch, opened.tail));
    let mut state = rebuild(log, &opened).await?;
    history.lock().states.push((known, state.clone()));
    loop {
        match env.random_below(20) {
            0 => {
                let offset = opened.writer.tail();
                let snapshot = log.put_snapshot(offset, encode(&state).into()).await?;
                let start = LogOffset(offset.0.saturating_sub(env.random_below(10)));
                opened.writer.install_snapshot(snapshot, start).await?;
                history.lock().trims += 1;
            }
            1 => {
                let swept = log.sweep().await?;
                history.lock().swept += swept;
            }
            2 => opened.writer.check().await?,
            3 => {
                let ms = u64::try_from(rest.as_millis()).unwrap();
                env.sleep(Duration::from_millis(env.random_below(ms))).await;
            }
            _ => {
                let count = 1 + env.random_below(3);
                let numbers: Vec<u64> = (0..count)
                    .map(|_| {
                        let mut history = history.lock();
                        history.next_entry += 1;
                        history.next_entry
                    })
                    .collect();
                let offset = opened.writer.append(encode(&numbers)).await?;
                state.extend(&numbers);
                history.lock().acknowledged.push((opened.epoch, offset, numbers));
            }
        }
    }
}

pub fn check(history: &History, last: &[u64]) {
    let entries: BTreeSet<u64> = last.iter().copied().collect();
    assert_eq!(entries.len(), last.len(), "an entry is there twice");
    let mut position = 0;
    let mut in_order = history.acknowledged.clone();
    in_order.sort_by_key(|(_, offset, _)| *offset);
    for (_, offset, numbers) in &in_order {
        let found = last[position..]
            .windows(numbers.len())
            .position(|window| window == numbers);
        position +=
            found.unwrap_or_else(|| panic!("acknowledged entries {numbers:?} at {offset} are lost or moved"));
        position += numbers.len();
    }
    for (known, state) in &history.states {
        assert!(
            last.starts_with(state),
            "a state was seen that is not part of the history"
        );
        let seen: BTreeSet<u64> = state.iter().copied().collect();
        for (_, offset, numbers) in &history.acknowledged[..*known] {
            assert!(
                numbers.iter().all(|n| seen.contains(n)),
                "a new leader misses {numbers:?} at {offset}"
            );
        }
    }
    // Take-overs are noted when `open` returns, which need not be their order in the log.
    let mut takeovers = history.takeovers.clone();
    takeovers.sort();
    assert!(
        takeovers.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1),
        "epochs and fences grow together: {takeovers:?}"
    );
    for (epoch, offset, _) in &history.acknowledged {
        let next = takeovers.iter().find(|(other, _)| other > epoch).unwrap();
        assert!(
            offset.next() < next.1,
            "slot {offset} of epoch {epoch} lies behind the fence of {next:?}"
        );
    }
}
