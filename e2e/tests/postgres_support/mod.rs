//! What the tests of the log engine on PostgreSQL share.

use e2e::postgres::Postgres;
use env::Env;
use metalog::{Owner, PostgresSettings};

/// The way into `server`, for the cluster `c`.
pub fn settings(server: &Postgres) -> PostgresSettings {
    PostgresSettings {
        url: server.url(),
        password_file: Some(server.password_file()),
        ca_file: None,
        cluster: "c".to_owned(),
    }
}

/// A node.
pub fn owner(env: &Env, node_id: i32) -> Owner {
    Owner {
        node_id,
        incarnation: env.uuid(),
        address: format!("node-{node_id}:9190"),
    }
}
