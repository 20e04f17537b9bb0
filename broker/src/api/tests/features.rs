//! The feature `diskless.version`, as clients see it, and nodes that do not support what is finalised.

use env::Simulation;
use kafka_wire::messages::update_features_request::FeatureUpdateKey;
use kafka_wire::messages::{ApiVersionsRequest, UpdateFeaturesRequest};
use types::feature::FEATURE;
use types::{FeatureLevel, FeatureLevels};

use super::*;

/// Supported levels, finalised levels, and the epoch of those.
async fn features(client: &mut Client) -> ((i16, i16), (i16, i16), i64) {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("tester"))
        .with_client_software_version(StrBytes::from_static_str("1"));
    let old = client.call(&request, 2).await;
    assert!(old.supported_features.is_empty(), "version 2 has none");
    let answer = client.call(&request, 3).await;
    let (supported, finalized) = (&answer.supported_features[0], &answer.finalized_features[0]);
    assert_eq!(
        (supported.name.as_str(), finalized.name.as_str()),
        (FEATURE, FEATURE)
    );
    (
        (supported.min_version, supported.max_version),
        (finalized.min_version_level, finalized.max_version_level),
        answer.finalized_features_epoch,
    )
}

async fn finalize(client: &mut Client, level: i16) -> (i16, String) {
    let update = FeatureUpdateKey::default()
        .with_feature(StrBytes::from_static_str(FEATURE))
        .with_max_version_level(level);
    let request = UpdateFeaturesRequest::default()
        .with_timeout_ms(10_000)
        .with_feature_updates(vec![update]);
    let answer = client.call(&request, 2).await;
    (
        answer.error_code,
        answer.error_message.unwrap_or_default().to_string(),
    )
}

#[tokio::test(start_paused = true)]
async fn an_administrator_finalises_what_the_brokers_support() {
    let c = cluster_with(
        |store, _| store,
        |config| {
            config.tuning.supported = FeatureLevels::FIRST_RELEASE;
        },
    )
    .await;
    let mut client = c.client().await;
    assert_eq!(features(&mut client).await, ((1, 1), (1, 1), 1));
    let (code, text) = finalize(&mut client, 2).await;
    assert_eq!(code, ResponseError::InvalidUpdateVersion.code(), "{text}");
    let (mut client, _) = c.with_topic("t").await;
    assert_eq!(
        client.produce("t", 0, plain(3, c.now(), |_| {}), -1).await,
        (0, 0)
    );
    drop(client);

    // The new release runs at the old level until it is told otherwise.
    let c = c.reborn().await;
    let mut client = c.client().await;
    assert_eq!(features(&mut client).await, ((1, 2), (1, 1), 1));
    assert_eq!(
        client.produce("t", 0, plain(2, c.now(), |_| {}), -1).await,
        (0, 3)
    );
    assert_eq!(finalize(&mut client, 2).await, (0, String::new()));
    assert_eq!(features(&mut client).await, ((1, 2), (2, 2), 2), "at once");
    assert_eq!(
        client.produce("t", 0, plain(1, c.now(), |_| {}), -1).await,
        (0, 5)
    );

    let c = c.reborn().await;
    let mut client = c.client().await;
    assert_eq!(features(&mut client).await, ((1, 2), (2, 2), 2));
    assert_eq!(offsets_of(&client.fetch("t", 0).await), [0, 3, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_support_what_is_finalised_is_told_so_and_ends() {
    let simulation = Simulation::new(5);
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "a secret that all nodes share").unwrap();
    let store: SharedStore = Arc::new(MemoryStore::new(simulation.node("bucket")));
    let start = async |host: &str, id: i32, supported: FeatureLevels| {
        let mut config = Config::dev(&dir.path().join(host), 9092, Some("memory://"));
        config.node.id = Some(id);
        config.internal.advertised_host = Some(host.to_owned());
        config.internal.secret_file = Some(secret.clone());
        config.alone = false;
        config.tuning.supported = supported;
        Node::start(simulation.node(host), config, store.clone())
            .await
            .unwrap()
    };
    let env = simulation.node("test");
    let node = start("one", 1, FeatureLevels::SUPPORTED).await;
    env.timeout(60 * SECOND, node.ready()).await.unwrap();
    let later = FeatureLevels {
        min: FeatureLevel(3),
        max: FeatureLevel(4),
    };
    for (host, id, supported) in [("two", 2, FeatureLevels::FIRST_RELEASE), ("three", 3, later)] {
        let refused = start(host, id, supported).await;
        let reason = env
            .timeout(10 * SECOND, refused.refused())
            .await
            .unwrap()
            .to_string();
        assert!(reason.contains("diskless.version 2"), "{reason}");
        assert!(reason.contains(&supported.to_string()), "{reason}");
        assert!(!refused.is_ready());
    }
    assert!(node.is_ready());

    // Without anybody to tell it, it finds out from the log.
    node.stop().await;
    let alone = start("four", 4, FeatureLevels::FIRST_RELEASE).await;
    let reason = env
        .timeout(60 * SECOND, alone.refused())
        .await
        .unwrap()
        .to_string();
    assert!(reason.contains("it supports diskless.version 1-1"), "{reason}");
}
