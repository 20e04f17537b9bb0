//! The database of the simulation against a real one: the same statements give the same rows.
#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "../sim/src/postgres/tables.rs"]
mod tables;

use std::collections::BTreeMap;
use std::error::Error;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use e2e::postgres::Postgres;
use env::Env;
use metalog::Statement;
use tables::{Answer, Tables, Value, int8};
use tokio::net::TcpStream;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, NoTls};

const STEPS: usize = 3_000;

/// A value as it is on the wire.
#[derive(Debug)]
struct Raw(Value);

impl ToSql for Raw {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.0 {
            None => Ok(IsNull::Yes),
            Some(bytes) => {
                out.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Raw {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Raw, Box<dyn Error + Sync + Send>> {
        Ok(Raw(Some(Bytes::copy_from_slice(raw))))
    }

    fn from_sql_null(_: &Type) -> Result<Raw, Box<dyn Error + Sync + Send>> {
        Ok(Raw(None))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

async fn connect(server: &Postgres) -> anyhow::Result<Client> {
    let mut config: Config = server.url().parse()?;
    config.password(std::fs::read_to_string(server.password_file())?.trim_end());
    let stream = TcpStream::connect(server.address()).await?;
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// What the real server gives, or the SQLSTATE.
async fn real(client: &Client, statement: Statement, params: &[Value]) -> Result<Answer, String> {
    let failed = |error: tokio_postgres::Error| match error.code() {
        Some(code) => code.code().to_owned(),
        None => error.to_string(),
    };
    if statement == Statement::CreateTables {
        client.batch_execute(statement.sql()).await.map_err(failed)?;
        return Ok(Answer::default());
    }
    let raw: Vec<Raw> = params.iter().cloned().map(Raw).collect();
    let typed = raw.iter().zip(statement.types().iter().cloned());
    let typed: Vec<(&(dyn ToSql + Sync), Type)> = typed.map(|(raw, r#type)| (raw as _, r#type)).collect();
    let rows = client
        .query_typed(statement.sql(), &typed)
        .await
        .map_err(failed)?;
    let columns = rows.first().map(|row| row.columns()).unwrap_or_default();
    Ok(Answer {
        columns: columns.iter().map(|column| column.type_().oid()).collect(),
        rows: rows
            .iter()
            .map(|row| (0..row.len()).map(|i| row.get::<_, Raw>(i).0).collect())
            .collect(),
    })
}

/// Statements of a few writers of a few logs, most of which fit what is there, and some of which do not.
struct Writers<'a> {
    env: &'a Env,
    tables: &'a mut Tables,
}

impl Writers<'_> {
    fn below(&self, bound: u64) -> i64 {
        i64::try_from(self.env.random_below(bound)).unwrap()
    }

    fn id(&self) -> Value {
        Some(Bytes::from(vec![u8::try_from(self.below(3)).unwrap(); 16]))
    }

    fn bytes(&self) -> Value {
        let length = usize::try_from(self.below(40)).unwrap();
        Some(Bytes::from(vec![u8::try_from(self.below(256)).unwrap(); length]))
    }

    fn step(&mut self) -> (Statement, Vec<Value>) {
        let text = |text: &str| Some(Bytes::copy_from_slice(text.as_bytes()));
        let name = vec![
            text(["one", "two"][self.env.random_below(2) as usize]),
            text(["x", "y"][self.env.random_below(2) as usize]),
        ];
        let row = self.tables.run(Statement::Row, &name).ok();
        let row = row.and_then(|mut answer| answer.rows.pop());
        let row = row.unwrap_or_else(|| {
            let number = int8(0);
            vec![
                self.id(),
                number.clone(),
                number.clone(),
                self.id(),
                number.clone(),
                number,
                None,
            ]
        });
        let [id, sequence, epoch, nonce, log_start, tail] = [0, 1, 2, 3, 4, 5].map(|i| row[i].clone());
        let near = |value: &Value| {
            let number = value
                .as_ref()
                .map_or(0, |bytes| i64::from_be_bytes(bytes[..].try_into().unwrap()));
            int8(number + self.below(5) - 3)
        };
        let (statement, mut params) = match self.below(40) {
            0 => (Statement::CreateTables, vec![]),
            1 => (Statement::HasTables, vec![]),
            2 => (Statement::Version, vec![]),
            3..6 => (Statement::Row, name),
            6..9 => {
                let [cluster, name] = <[Value; 2]>::try_from(name).unwrap();
                (Statement::CreateRow, vec![cluster, name, self.id(), self.bytes()])
            }
            9..15 => {
                let higher = near(&epoch);
                let params = vec![
                    id,
                    sequence.clone(),
                    near(&sequence),
                    higher,
                    self.id(),
                    near(&log_start),
                    self.bytes(),
                ];
                (Statement::Replace, params)
            }
            15..26 => {
                let nonce = nonce.or_else(|| self.id());
                (
                    Statement::Append,
                    vec![id, epoch, nonce, tail, self.bytes(), self.bytes()],
                )
            }
            26..30 => (Statement::Slot, vec![id, near(&tail)]),
            30..37 => {
                let from = near(&near(&near(&tail)));
                (
                    Statement::Read,
                    vec![id, from, int8(self.below(120)), int8(self.below(6))],
                )
            }
            _ => (
                Statement::Delete,
                vec![id, near(&near(&tail)), int8(self.below(4))],
            ),
        };
        // One parameter is another writer's, or an old one.
        if !params.is_empty() && self.below(6) == 0 {
            let i = self.env.random_below(params.len() as u64) as usize;
            match statement.types()[i] {
                Type::INT8 if statement != Statement::Read && statement != Statement::Delete => {
                    params[i] = near(&params[i]);
                }
                Type::UUID => params[i] = self.id(),
                _ => {}
            }
        }
        (statement, params)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_simulated_database_answers_as_a_real_one_does() -> anyhow::Result<()> {
    let (server, env) = (Postgres::start()?, Env::production());
    let client = connect(&server).await?;
    let mut tables = Tables::default();
    // How often each has given rows, none, or an error.
    let mut seen: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    let mut history = Vec::new();
    for _ in 0..STEPS {
        let (env, tables) = (&env, &mut tables);
        let (statement, params) = Writers {
            env,
            tables: &mut *tables,
        }
        .step();
        let simulated = tables.run(statement, &params);
        let real = real(&client, statement, &params).await;
        history.push(format!("{statement:?} {params:?}"));
        let place = || history[history.len().saturating_sub(20)..].join("\n");
        let count = seen.entry(format!("{statement:?}")).or_default();
        match (&simulated, &real) {
            (Ok(simulated), Ok(real)) => {
                assert_eq!(simulated.rows, real.rows, "{}", place());
                if !real.rows.is_empty() {
                    assert_eq!(simulated.columns, real.columns, "{}", place());
                }
                count[usize::from(real.rows.is_empty())] += 1;
            }
            (Err(simulated), Err(real)) => {
                assert_eq!(simulated.code, real, "{}\n{}", simulated.message, place());
                count[2] += 1;
            }
            _ => panic!("{simulated:?}, really {real:?}\n{}", place()),
        }
    }
    for statement in ["Row", "Replace", "Append", "Slot"] {
        let count = seen.get(statement).context(statement)?;
        assert!(count[0] > 10 && count[1] > 10, "{statement}: {count:?}");
    }
    for statement in [
        "Read",
        "Delete",
        "CreateRow",
        "CreateTables",
        "HasTables",
        "Version",
    ] {
        let count = seen.get(statement).context(statement)?;
        assert!(count[0] + count[1] > 10, "{statement}: {count:?}");
    }
    Ok(())
}
