//! The operator and the feature `diskless.version`: a real control plane, and real brokers over a bucket of the release
//! before.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod operator_support;

use std::path::Path;

use broker::config::Config;
use broker::server::Node;
use crds::DisklessCluster;
use e2e::node::{Cluster, Plan};
use e2e::wire::{Wire, text};
use env::Env;
use kafka_protocol::messages::ApiVersionsRequest;
use kube::api::{Api, Patch, PatchParams};
use operator_support::*;
use serde_json::{Value, json};
use types::FeatureLevels;

/// Has the first release form a cluster in the folder, and leave it.
async fn form_with_first_release(store: &str, data: &Path) {
    let env = Env::production();
    let mut config = Config::dev(data, 0, Some(store));
    config.tuning.supported = FeatureLevels::FIRST_RELEASE;
    let opened = blob::open(store, None, env.clone()).await.unwrap();
    let node = Node::start(env, config, opened.store).await.unwrap();
    node.ready().await;
    node.stop().await;
}

/// The finalised level, as a client sees it.
fn finalized(brokers: &Cluster) -> i16 {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("e2e"))
        .with_client_software_version(text("1"));
    let mut wire = Wire::connect(&brokers.brokers[0].address()).unwrap();
    let answer = wire.call(&request, 3).unwrap();
    answer.finalized_features[0].max_version_level
}

async fn change(clusters: &Api<DisklessCluster>, spec: Value) -> kube::Result<DisklessCluster> {
    let patch = Patch::Merge(json!({"spec": spec}));
    clusters.patch("demo", &PatchParams::default(), &patch).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_level_is_raised_when_the_spec_asks_and_the_roll_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("file://{}", dir.path().join("store").display());
    form_with_first_release(&store, &dir.path().join("first")).await;
    let plan = Plan {
        store: Some(store),
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    };
    let brokers = tokio::task::spawn_blocking(|| Cluster::start(plan).unwrap())
        .await
        .unwrap();
    assert_eq!(finalized(&brokers), 1);

    let plane = ControlPlane::start().await;
    let _operator = Operator::start(&plane, &brokers.brokers[0].address(), &[]).await;
    plane.namespace("levels").await;
    create_secret(&plane, "levels").await;
    let clusters: Api<DisklessCluster> = plane.api("levels");
    apply(&clusters, &cluster("demo", 2)).await.unwrap();

    // Nobody has asked for it: the way back stays open, and the way on is shown.
    let offer = wait_condition(&clusters, "demo", "FeatureLevelFinalized", "False/UpgradePending").await;
    assert!(offer.contains("set spec.featureLevel to 2"), "{offer}");
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    let status = clusters.get("demo").await.unwrap().status.unwrap();
    let supported = status.supported_feature_levels.unwrap();
    assert_eq!(
        (status.feature_level, supported.min, supported.max),
        (Some(1), 1, 2)
    );

    // What no node supports is refused, and can be taken back.
    change(&clusters, json!({"featureLevel": 3})).await.unwrap();
    let refusal = wait_condition(&clusters, "demo", "Ready", "False/FeatureLevelUnsupported").await;
    assert!(refusal.contains("spec.featureLevel is 3"), "{refusal}");
    wait_condition(&clusters, "demo", "Stalled", "True").await;

    // A roll that does not come to its end does not take the way back.
    change(&clusters, json!({"featureLevel": 2, "image": BAD_IMAGE}))
        .await
        .unwrap();
    wait_condition(&clusters, "demo", "Ready", "False/RolloutBlocked").await;
    let waits = wait_condition(&clusters, "demo", "FeatureLevelFinalized", "False/Finalizing").await;
    assert!(waits.contains("when every pod runs as specified"), "{waits}");
    assert_eq!(finalized(&brokers), 1);

    change(&clusters, json!({"image": "v2"})).await.unwrap();
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    wait_condition(&clusters, "demo", "FeatureLevelFinalized", "True/AsSpecified").await;
    assert_eq!(finalized(&brokers), 2);
    let status = clusters.get("demo").await.unwrap().status.unwrap();
    assert_eq!(status.feature_level, Some(2));
    let events = plane.events("levels", "demo").await;
    let raised = events
        .iter()
        .filter(|event| event.starts_with("FeatureLevelRaised"));
    assert_eq!(raised.count(), 1, "{events:?}");

    // There is no way back, and the API server says so.
    let lowered = change(&clusters, json!({"featureLevel": 1})).await.unwrap_err();
    assert!(
        lowered
            .to_string()
            .contains("spec.featureLevel must not be below"),
        "{lowered}"
    );
    change(&clusters, json!({"featureLevel": null})).await.unwrap();
    wait_condition(&clusters, "demo", "FeatureLevelFinalized", "True/Newest").await;

    // Where it could not know: a cluster that begins with a higher level than its spec asks for.
    let mut low = cluster("low", 1);
    low["spec"]["featureLevel"] = 1.into();
    apply(&clusters, &low).await.unwrap();
    let refusal = wait_condition(&clusters, "low", "Ready", "False/FeatureLevelCannotBeLowered").await;
    assert!(
        refusal.contains("set spec.featureLevel to 2, or remove it"),
        "{refusal}"
    );
    assert_eq!(finalized(&brokers), 2);
}
