//! `diskless-broker orphans`: one scan from the command line, of a cluster that runs.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use blob::SharedStore;
use cluster::protocol::{DescribeClusterRequest, DescribeClusterResponse};
use coordinator::protocol::api_key;
use env::Env;

use super::{Report, Scanner};
use crate::auth::ClusterSecret;
use crate::config::Config;
use crate::metadata::metadata;
use crate::rpc::{Coordinators, Pool};

const CALL: Duration = Duration::from_secs(10);

/// Looks for orphans in the cluster that `config` belongs to; with `delete` they are given to the shards for deletion.
/// Gives the text for the user.
pub async fn run(env: &Env, config: &Config, store: SharedStore, delete: bool) -> anyhow::Result<String> {
    let file = config.internal.secret_file.as_deref();
    let file = file.context("internal.secret_file: missing: without it no node answers")?;
    let pool = Pool::new(env.clone(), Arc::new(ClusterSecret::read(file)?));
    let log = crate::server::open_logs(env, config, store.clone())
        .await?
        .log("cluster");
    let Some((_, owner)) = log.owner().await? else {
        bail!(
            "object_store.url: {}: there is no cluster",
            config.object_store.url
        );
    };
    let answer: DescribeClusterResponse = pool
        .call(
            &owner.address,
            api_key::DESCRIBE_CLUSTER,
            &DescribeClusterRequest {
                node: config.node.node_id(),
            },
            env.instant() + CALL,
        )
        .await
        .with_context(|| format!("the controller at {}", owner.address))?;
    let (writer, metadata) = metadata();
    match answer.image {
        Some(image) => writer.update(image),
        None => bail!("the controller at {} knows no cluster yet", owner.address),
    }
    let coordinators = Coordinators::new(env.clone(), metadata.clone(), pool);
    let scanner = Scanner {
        env: env.clone(),
        store,
        metadata,
        coordinators,
    };
    let min_age = Duration::from_millis(config.orphan_scan.min_age_ms);
    let report = scanner.scan(min_age, delete).await?;
    Ok(text(&report, min_age, config.coordinator.file_grace_ms, delete))
}

fn text(report: &Report, min_age: Duration, grace_ms: u64, delete: bool) -> String {
    let Report {
        listed,
        young,
        orphans,
        foreign,
        oldest_live,
    } = report;
    let mut out = format!(
        "{listed} objects below {}, {young} younger than {min_age:?} not looked at\n",
        wal::PREFIX
    );
    if let Some(oldest) = oldest_live {
        let _ = writeln!(out, "oldest live file: committed at {} ms", oldest.0);
    }
    let _ = writeln!(
        out,
        "orphans: {} objects, {} bytes",
        orphans.objects, orphans.bytes
    );
    for key in &orphans.first {
        let _ = writeln!(out, "  {key}");
    }
    let _ = writeln!(
        out,
        "foreign: {} objects, {} bytes; they are left alone",
        foreign.objects, foreign.bytes
    );
    for key in &foreign.first {
        let _ = writeln!(out, "  {key}");
    }
    let end = match (orphans.objects, delete) {
        (0, _) => "nothing to delete".to_owned(),
        (_, true) => format!("the orphans are given to the shards, which delete them in {grace_ms} ms"),
        (_, false) => "nothing was changed; --delete has the orphans deleted".to_owned(),
    };
    out + &end
}
