//! A rolling upgrade. In some runs the nodes begin as those of the first release: they read and write its formats, and no
//! others. While everything else goes on they become those of this one, sometimes after a first attempt that is undone;
//! when all have, the new formats are finalised. An old node that comes then has to stay outside.

use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::Span;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{ApiVersionsRequest, UpdateFeaturesRequest};
use kafka_protocol::protocol::StrBytes;
use types::FeatureLevels;
use types::feature::FEATURE;

use crate::class;
use crate::client::{Client, Failure};
use crate::lab::{Lab, clock};
use crate::requests::{codes, missing};
use crate::world::{Release, World};

/// One run in so many begins with old nodes.
const RUNS: u64 = 3;
const NEWEST: i16 = FeatureLevels::SUPPORTED.max.0;
const PAUSE: Duration = Duration::from_millis(100);
/// The next node's turn comes when this one is ready, but no later than after this.
const READY: Duration = Duration::from_secs(5);
/// After an upgrade that was undone everything is served again within this time, whatever else goes wrong.
const UNDONE: Duration = Duration::from_secs(40);
/// An old node that comes late is watched for so long.
const LATE: Duration = Duration::from_secs(3);

/// What the nodes of a run are at first.
pub(crate) fn first_release(seed: u64) -> Release {
    match class(seed, "upgrade", RUNS) {
        0 => Release::First,
        _ => Release::This,
    }
}

/// Upgrades all nodes, and finalises what they support.
pub(crate) async fn run(env: Env, world: Arc<World>, lab: Arc<Lab>) {
    env.sleep(Duration::from_millis(env.random_below(6_000))).await;
    if env.random_below(3) == 0 {
        let mut some = shuffled(&env, &world);
        some.truncate(1 + env.random_below(some.len() as u64) as usize);
        for name in &some {
            replace(&env, &world, &lab, name, Release::This).await;
        }
        lab.trace.add(&env, "the upgrade is undone");
        for name in &some {
            replace(&env, &world, &lab, name, Release::First).await;
        }
        check_undone(&env, &lab).await;
    }
    for name in shuffled(&env, &world) {
        replace(&env, &world, &lab, &name, Release::This).await;
    }
    let mut client = Client::new(env.clone(), &lab);
    while let Err(failure) = client.finalize(NEWEST).await {
        lab.trace.add(&env, format_args!("not finalised: {failure}"));
        client.disconnect();
        env.sleep(PAUSE).await;
    }
    lab.trace
        .add(&env, format_args!("{FEATURE} {NEWEST} is finalised"));
    if env.random_below(2) == 0 {
        let late = world.random_node(&env);
        take(&env, &world, &late).await;
        let from = clock(&env);
        restart(&env, &world, &lab, &late, Release::First).await;
        let end = env.instant() + LATE;
        while env.instant() < end {
            if world.is_ready(&late) {
                lab.broken(
                    &env,
                    format!("{late} takes part and cannot read what is finalised"),
                );
                break;
            }
            env.sleep(PAUSE).await;
        }
        restart(&env, &world, &lab, &late, Release::This).await;
        world.give_back(&late);
        let to = clock(&env);
        lab.faults.lock().push(Span { from, to });
    }
}

/// Nothing that the new nodes have written stands in the way of the old ones.
async fn check_undone(env: &Env, lab: &Lab) {
    let mut client = Client::new(env.clone(), lab);
    let end = env.instant() + UNDONE;
    for topic in &lab.topics {
        while let Err(failure) = client.offsets(topic.name, topic.partitions(), -1).await {
            if env.instant() >= end {
                let name = topic.name;
                lab.broken(
                    env,
                    format!("{name} is not served after an upgrade that was undone: {failure}"),
                );
                return;
            }
            client.disconnect();
            env.sleep(PAUSE).await;
        }
    }
}

/// Every broker says in the end that the newest level is finalised.
pub(crate) async fn check(env: &Env, lab: &Lab) {
    for broker in &lab.bootstrap {
        let mut client = Client::at(env.clone(), lab, broker);
        let found = loop {
            match client.finalized().await {
                Ok(found) => break found,
                Err(failure) => lab.trace.add(env, failure),
            }
            client.disconnect();
            env.sleep(PAUSE).await;
        };
        if found != NEWEST {
            lab.broken(
                env,
                format!("{broker} takes {FEATURE} {found} for finalised, not {NEWEST}"),
            );
        }
    }
}

fn shuffled(env: &Env, world: &World) -> Vec<String> {
    let mut rest = world.names();
    let mut names = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        names.push(rest.swap_remove(env.random_below(rest.len() as u64) as usize));
    }
    names
}

/// Has a node for this alone.
async fn take(env: &Env, world: &World, name: &str) {
    while !world.take(name) {
        env.sleep(PAUSE).await;
    }
}

async fn replace(env: &Env, world: &World, lab: &Lab, name: &str, release: Release) {
    take(env, world, name).await;
    let from = clock(env);
    restart(env, world, lab, name, release).await;
    world.give_back(name);
    let ready = async {
        while !world.is_ready(name) {
            env.sleep(PAUSE).await;
        }
    };
    let _ = env.timeout(READY, ready).await;
    let to = clock(env);
    lab.faults.lock().push(Span { from, to });
}

async fn restart(env: &Env, world: &World, lab: &Lab, name: &str, release: Release) {
    lab.trace.add(env, format_args!("{name} becomes {release:?}"));
    match env.random_below(3) {
        0 => world.kill(name).await,
        _ => world.stop(name).await,
    }
    world.install(name, release);
    env.sleep(Duration::from_millis(env.random_below(1_000))).await;
    world.start(name);
}

impl Client {
    /// UpdateFeatures
    async fn finalize(&mut self, level: i16) -> Result<(), Failure> {
        let update = FeatureUpdateKey::default()
            .with_feature(StrBytes::from_static_str(FEATURE))
            .with_max_version_level(level);
        let request = UpdateFeaturesRequest::default()
            .with_timeout_ms(5_000)
            .with_feature_updates(vec![update]);
        match self.call(&request, 2).await?.error_code {
            0 => Ok(()),
            code => Err(self.refused("UpdateFeatures", code, codes::ADMIN)),
        }
    }

    /// The finalised level.
    async fn finalized(&mut self) -> Result<i16, Failure> {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("sim"))
            .with_client_software_version(StrBytes::from_static_str("1"));
        let response = self.call(&request, 3).await?;
        let mut features = response.finalized_features.iter();
        let feature = features.find(|feature| feature.name.as_str() == FEATURE);
        Ok(feature.ok_or_else(missing)?.max_version_level)
    }
}
