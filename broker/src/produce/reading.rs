//! The records of produced batches are read to their last byte before they are taken: what is stored every consumer can
//! read.
//!
//! For a batch that is not compressed this takes as long as it is large, and happens where the request came in. A
//! compressed one may be a thousand times larger than it looks: only small ones that stay small are read there, the rest
//! on threads for such work, a few requests at a time, and each of them in turns. Kafka does it on the threads that handle
//! requests (`num.io.threads`, 8), without another bound.

use std::sync::Arc;

use bytes::Bytes;
use cluster::configs::TopicConfig;
use env::Env;
use kafka_wire::ResponseError;
use kafka_wire::batch::{BatchError, BatchHeader, Codec};
use kafka_wire::records::{self, MAX_DECOMPRESSED};
use tokio::sync::Semaphore;
use types::Timestamp;

use super::Refusal;

/// Compressed batches above this size are never read where the request came in, in bytes.
const SMALL: usize = 16 << 10;
/// So much of a request is decompressed there at most, in bytes.
const AT_ONCE: u64 = 256 << 10;
/// A compressed batch counts for this many decompressed bytes at least: a decoder has to be made for it.
const DECODER: u64 = 4 << 10;
/// So much is decompressed of one request, in bytes. Clients gather up to 1 MiB (Java) or 100 MiB (franz-go) in a request,
/// and most of them count that before they compress.
const MOST: u64 = 1 << 30;
/// Requests whose batches are decompressed at the same time.
const READERS: usize = 4;
/// After so many decompressed bytes it is another request's turn.
const TURN: u64 = 16 << 20;
/// Records that the refusals of a request name: all of them could be more than the request itself.
const NAMED: usize = 1000;

/// A batch with a valid header.
pub struct Unread {
    /// The batch as it came in.
    pub batch: Bytes,
    /// Its header.
    pub header: BatchHeader,
    /// Of its topic.
    pub config: TopicConfig,
    /// When it came in.
    pub now: Timestamp,
}

impl Unread {
    /// Reads all records. `budget` and `named` are what is left of the bytes that may be decompressed and of the records
    /// that may be named.
    fn read(&self, budget: &mut u64, named: &mut usize) -> Result<(), Refusal> {
        let config = &self.config;
        let mut late = Vec::new();
        let mut first = None;
        let checked = records::check(&self.batch, budget, |index, time| {
            if config.log_append_time || (first.is_some() && late.len() >= *named) {
                return;
            }
            if let Some(why) = wrong_time(Timestamp(time), config, self.now) {
                first.get_or_insert_with(|| why.clone());
                late.push((index, why));
            }
        });
        checked.map_err(Refusal::wrong)?;
        late.truncate(*named);
        *named -= late.len();
        match first {
            None => Ok(()),
            Some(message) => Err(Refusal {
                error: ResponseError::InvalidTimestamp,
                message,
                records: late,
            }),
        }
    }
}

/// What is wrong with the create time of a record. -1 is none.
fn wrong_time(time: Timestamp, config: &TopicConfig, now: Timestamp) -> Option<String> {
    let (key, distance, limit) = match time <= now {
        true => ("before", now.since(time), config.before_max_ms),
        false => ("after", time.since(now), config.after_max_ms),
    };
    (time.0 != -1 && distance > limit).then(|| {
        format!(
            "Timestamp {time} is {distance} ms away from the broker's {now}: message.timestamp.{key}.max.ms is {limit}"
        )
    })
}

/// The batches of one request.
pub struct Reading {
    at_once: u64,
    named: usize,
    /// Those that are not read yet, and which of the request's they are.
    later: Vec<(usize, Unread)>,
}

impl Default for Reading {
    fn default() -> Reading {
        Reading {
            at_once: AT_ONCE,
            named: NAMED,
            later: Vec::new(),
        }
    }
}

impl Reading {
    /// Reads the request's batch number `place`, or keeps it for [`Readers::finish`]: nothing is wrong with it so far.
    pub fn read(&mut self, place: usize, batch: Unread) -> Result<(), Refusal> {
        if batch.header.codec() == Ok(Codec::None) {
            let mut any = MAX_DECOMPRESSED;
            return batch.read(&mut any, &mut self.named);
        }
        if batch.batch.len() <= SMALL && self.at_once > 0 {
            let mut left = self.at_once;
            let read = batch.read(&mut left, &mut self.named);
            self.at_once = left.min(self.at_once.saturating_sub(DECODER));
            // It may be too large for this place only.
            if !is_too_large(&read) {
                return read;
            }
        }
        self.later.push((place, batch));
        Ok(())
    }

    /// Whether all batches are read.
    pub fn is_done(&self) -> bool {
        self.later.is_empty()
    }
}

fn is_too_large(read: &Result<(), Refusal>) -> bool {
    let too_large = BatchError::TooLarge.response_error();
    read.as_ref().is_err_and(|refusal| refusal.error == too_large)
}

/// Where batches are decompressed.
pub struct Readers {
    env: Env,
    turns: Arc<Semaphore>,
}

impl Readers {
    /// Those of a broker.
    pub fn new(env: Env) -> Readers {
        let turns = Arc::new(Semaphore::new(READERS));
        Readers { env, turns }
    }

    /// Reads the rest of a request's batches and gives those that are refused.
    pub async fn finish(&self, reading: Reading) -> Vec<(usize, Refusal)> {
        let mut rest = Rest {
            batches: reading.later.into_iter(),
            budget: MOST,
            named: reading.named,
            refused: Vec::new(),
        };
        while rest.batches.len() > 0 {
            rest = self
                .turn(move || {
                    rest.go_on();
                    rest
                })
                .await;
        }
        rest.refused
    }

    /// Does what decompresses up to a batch, when it is its turn.
    pub async fn turn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        // It is never closed. Who stops waiting leaves the work to its end: the turn must last as long.
        let turn = self.turns.clone().acquire_owned().await;
        let work = move || {
            let done = work();
            drop(turn);
            done
        };
        self.env.blocking(work).await
    }
}

/// A request whose batches are being decompressed.
struct Rest {
    batches: std::vec::IntoIter<(usize, Unread)>,
    budget: u64,
    named: usize,
    refused: Vec<(usize, Refusal)>,
}

impl Rest {
    /// One turn.
    fn go_on(&mut self) {
        let end = self.budget.saturating_sub(TURN);
        for (place, batch) in self.batches.by_ref() {
            let before = self.budget;
            let read = match before {
                0 => Err(too_much()),
                _ => batch.read(&mut self.budget, &mut self.named),
            };
            self.budget = self.budget.min(before.saturating_sub(DECODER));
            let read = match self.budget {
                0 if is_too_large(&read) => Err(too_much()),
                _ => read,
            };
            if let Err(refusal) = read {
                self.refused.push((place, refusal));
            }
            if self.budget <= end && self.budget > 0 {
                break;
            }
        }
    }
}

fn too_much() -> Refusal {
    let message = format!("The batches of a request come to more than {MOST} bytes decompressed");
    Refusal::new(BatchError::TooLarge.response_error(), message)
}

#[cfg(test)]
mod tests;
