//! The tables of the log engine `postgres`, and what each of its statements does to them.
//!
//! Values are as on the wire, in binary. A statement is one step, because the engine's are: each is a transaction that reads and writes in
//! one statement under the lock of the log's row. `e2e/tests/postgres_model.rs` holds this against a real server.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};
use metalog::Statement;

pub(crate) const BOOL: u32 = 16;
pub(crate) const BYTEA: u32 = 17;
pub(crate) const INT8: u32 = 20;
pub(crate) const INT4: u32 = 23;
pub(crate) const UUID: u32 = 2950;

/// A value; `None` is NULL.
pub(crate) type Value = Option<Bytes>;

/// What a statement gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The types of its columns, as OIDs; none if it gives no rows at all.
    pub(crate) columns: Vec<u32>,
    pub(crate) rows: Vec<Vec<Value>>,
}

/// Why a statement failed; it has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SqlError {
    /// SQLSTATE
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// One database.
#[derive(Default)]
pub(crate) struct Tables {
    created: bool,
    /// By cluster and name.
    logs: BTreeMap<(Bytes, Bytes), Log>,
    /// By log and offset.
    slots: BTreeMap<(Bytes, i64), Bytes>,
}

struct Log {
    id: Bytes,
    sequence: i64,
    epoch: i64,
    nonce: Value,
    log_start: i64,
    tail: i64,
    chain: Bytes,
    manifest: Value,
}

pub(crate) fn int8(number: i64) -> Value {
    Some(Bytes::copy_from_slice(&number.to_be_bytes()))
}

fn int4(number: i32) -> Value {
    Some(Bytes::copy_from_slice(&number.to_be_bytes()))
}

pub(crate) fn boolean(value: bool) -> Value {
    Some(Bytes::copy_from_slice(&[u8::from(value)]))
}

fn rows(columns: &[u32], rows: Vec<Vec<Value>>) -> Answer {
    Answer {
        columns: columns.to_vec(),
        rows,
    }
}

/// Parameters, in order. None of the engine's is ever NULL.
struct Params<'a>(std::slice::Iter<'a, Value>);

impl Params<'_> {
    fn bytes(&mut self) -> Result<Bytes, SqlError> {
        self.0.next().cloned().flatten().ok_or_else(|| SqlError {
            code: "42P18",
            message: "a parameter is missing".to_owned(),
        })
    }

    fn int8(&mut self) -> Result<i64, SqlError> {
        self.bytes()?.try_get_i64().map_err(|_| SqlError {
            code: "22P03",
            message: "a parameter is no bigint".to_owned(),
        })
    }
}

impl Tables {
    /// Runs a statement. Those about a session are not its business.
    pub(crate) fn run(&mut self, statement: Statement, params: &[Value]) -> Result<Answer, SqlError> {
        let mut params = Params(params.iter());
        if !self.created && !matches!(statement, Statement::HasTables | Statement::CreateTables) {
            return Err(SqlError {
                code: "42P01",
                message: "the tables are not there".to_owned(),
            });
        }
        match statement {
            Statement::HasTables => Ok(rows(&[BOOL], vec![vec![boolean(self.created)]])),
            Statement::CreateTables => {
                self.created = true;
                Ok(Answer::default())
            }
            Statement::Version => Ok(rows(&[INT4], vec![vec![int4(1)]])),
            Statement::Row => {
                let key = (params.bytes()?, params.bytes()?);
                let found = self.logs.get(&key).map(|log| {
                    vec![
                        Some(log.id.clone()),
                        int8(log.sequence),
                        int8(log.epoch),
                        log.nonce.clone(),
                        int8(log.log_start),
                        int8(log.tail),
                        log.manifest.clone(),
                    ]
                });
                let columns = [UUID, INT8, INT8, UUID, INT8, INT8, BYTEA];
                Ok(rows(&columns, found.into_iter().collect()))
            }
            Statement::CreateRow => {
                let key = (params.bytes()?, params.bytes()?);
                let (id, chain) = (params.bytes()?, params.bytes()?);
                // Name and id are both unique, and a conflict with either is none.
                if self.log(&id).is_none() {
                    self.logs.entry(key).or_insert(Log {
                        id,
                        sequence: -1,
                        epoch: 0,
                        nonce: None,
                        log_start: 0,
                        tail: 0,
                        chain,
                        manifest: None,
                    });
                }
                Ok(Answer::default())
            }
            Statement::Replace => {
                let (id, before) = (params.bytes()?, params.int8()?);
                let (sequence, epoch, nonce) = (params.int8()?, params.int8()?, params.bytes()?);
                let (log_start, manifest) = (params.int8()?, params.bytes()?);
                let replaced = self.log(&id).filter(|log| log.sequence == before).map(|log| {
                    log.sequence = sequence;
                    log.epoch = epoch;
                    log.nonce = Some(nonce);
                    log.log_start = log_start;
                    log.manifest = Some(manifest);
                    vec![int8(log.tail), Some(log.chain.clone())]
                });
                Ok(rows(&[INT8, BYTEA], replaced.into_iter().collect()))
            }
            Statement::Append => {
                let (id, epoch, nonce) = (params.bytes()?, params.int8()?, params.bytes()?);
                let (offset, chain, body) = (params.int8()?, params.bytes()?, params.bytes()?);
                let mine = self.log(&id).filter(|log| {
                    log.epoch == epoch && log.nonce.as_ref() == Some(&nonce) && log.tail == offset
                });
                let Some(log) = mine else {
                    return Ok(rows(&[INT4], Vec::new()));
                };
                log.tail = offset + 1;
                log.chain = chain;
                self.slots.insert((id, offset), body);
                Ok(rows(&[INT4], vec![vec![int4(1)]]))
            }
            Statement::Slot => {
                let key = (params.bytes()?, params.int8()?);
                let found = self.slots.get(&key).map(|body| vec![Some(body.clone())]);
                Ok(rows(&[BYTEA], found.into_iter().collect()))
            }
            Statement::Read => {
                let (id, from) = (params.bytes()?, params.int8()?);
                let (bytes, limit) = (params.int8()?, params.int8()?);
                Ok(rows(
                    &[INT8, INT8, INT8, BYTEA],
                    self.read(&id, from, bytes, limit),
                ))
            }
            Statement::Delete => {
                let (id, end, limit) = (params.bytes()?, params.int8()?, params.int8()?);
                let gone = self.slots.range((id.clone(), i64::MIN)..(id, end));
                let gone: Vec<_> = gone
                    .map(|(key, _)| key.clone())
                    .take(usize::try_from(limit).unwrap_or(0))
                    .collect();
                gone.iter().for_each(|key| drop(self.slots.remove(key)));
                let count = i64::try_from(gone.len()).unwrap_or(i64::MAX);
                Ok(rows(&[INT8], vec![vec![int8(count)]]))
            }
            Statement::Server | Statement::Setup | Statement::Listen | Statement::Notify => Err(SqlError {
                code: "0A000",
                message: format!("{statement:?} is about a session"),
            }),
        }
    }

    fn log(&mut self, id: &Bytes) -> Option<&mut Log> {
        self.logs.values_mut().find(|log| log.id == *id)
    }

    fn read(&mut self, id: &Bytes, from: i64, bytes: i64, limit: i64) -> Vec<Vec<Value>> {
        let Some((log_start, tail)) = self.log(id).map(|log| (log.log_start, log.tail)) else {
            return Vec::new();
        };
        let mut before = 0;
        let next = self.slots.range((id.clone(), from)..=(id.clone(), i64::MAX));
        let found: Vec<_> = next
            .take(usize::try_from(limit).unwrap_or(0))
            .take_while(|(_, body)| {
                let begins = before;
                before += i64::try_from(body.len()).unwrap_or(i64::MAX);
                begins < bytes
            })
            .map(|((_, offset), body)| vec![int8(log_start), int8(tail), int8(*offset), Some(body.clone())])
            .collect();
        match found.is_empty() {
            true => vec![vec![int8(log_start), int8(tail), None, None]],
            false => found,
        }
    }
}
