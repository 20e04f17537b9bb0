//! The feature `diskless.version`: who may raise it, and who has to stay outside then.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coordinator::replica::{End, StateError, StateMachine};
use env::JoinHandle;
use kafka_wire::messages::UpdateFeaturesRequest;
use kafka_wire::messages::update_features_request::FeatureUpdateKey;
use kafka_wire::{ResponseError, StrBytes};
use metalog::{MetadataLog, ObjectLog};
use types::feature::FEATURE;
use types::{FeatureLevel, FeatureLevels, LogOffset, Timestamp};

use super::{Lab, node, owner};
use crate::entry::{self, Change};
use crate::protocol::HeartbeatRequest;
use crate::state::{ClusterState, Command};
use crate::{ControllerService, Settings};

const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;

async fn open(lab: &Lab, id: i32, supported: FeatureLevels) -> Result<Arc<ControllerService>, End> {
    let options = metalog::Options::default();
    let log = ObjectLog::new(lab.store.clone(), "cluster", options, lab.env.clone());
    let log: Arc<dyn MetadataLog> = Arc::new(log);
    let settings = Settings {
        supported,
        ..Settings::default()
    };
    ControllerService::open(&lab.env, log, owner(id), lab.shards.clone(), settings, None).await
}

fn update(level: i16, upgrade_type: i8) -> FeatureUpdateKey {
    FeatureUpdateKey::default()
        .with_feature(StrBytes::from_static_str(FEATURE))
        .with_max_version_level(level)
        .with_upgrade_type(upgrade_type)
}

fn request(updates: &[FeatureUpdateKey]) -> UpdateFeaturesRequest {
    UpdateFeaturesRequest::default()
        .with_timeout_ms(30_000)
        .with_feature_updates(updates.to_vec())
}

/// Error code and text.
async fn ask(controller: &ControllerService, request: &UpdateFeaturesRequest) -> (i16, String) {
    let response = controller.update_features(request, 2).await.unwrap();
    assert!(response.results.is_empty(), "version 2 has none");
    let text = response.error_message.map(|text| text.to_string());
    (response.error_code, text.unwrap_or_default())
}

fn live(lab: &Lab, controller: &Arc<ControllerService>, mut said: HeartbeatRequest) -> JoinHandle<()> {
    let (controller, env) = (controller.clone(), lab.env.clone());
    lab.env.spawn(async move {
        loop {
            said.sequence += 1;
            let answer = controller.heartbeat(&said, pending()).await;
            if answer.error_code != 0 {
                return;
            }
            if let Some(image) = answer.image {
                (said.controller_epoch, said.version) = (image.controller_epoch, image.version);
            }
            env.sleep(Duration::from_millis(10)).await;
        }
    })
}

fn level(controller: &ControllerService) -> FeatureLevel {
    controller.image().expect("published").feature_level()
}

const REFUSED: i16 = 95;

#[tokio::test(start_paused = true)]
async fn a_level_is_finalised_once_all_live_nodes_support_it() {
    let lab = Lab::new();
    let old = open(&lab, 0, FeatureLevels::FIRST_RELEASE).await.unwrap();
    let raise = request(&[update(2, UPGRADE)]);
    let (code, text) = ask(&old, &raise).await;
    assert!(
        code == REFUSED && text.contains("only supports versions 1-1"),
        "{text}"
    );

    let controller = open(&lab, 1, FeatureLevels::SUPPORTED).await.unwrap();
    let _new_node = live(&lab, &controller, node(1, "a"));
    let first_release = HeartbeatRequest {
        supported: None,
        ..node(2, "a")
    };
    let old_node = live(&lab, &controller, first_release.clone());
    lab.env.sleep(Duration::from_secs(3)).await;
    assert_eq!(
        level(&controller),
        FeatureLevel::FIRST,
        "nobody has asked for more"
    );
    for validate_only in [true, false] {
        let (code, text) = ask(&controller, &raise.clone().with_validate_only(validate_only)).await;
        assert!(
            code == REFUSED && text.contains("Node 2 only supports versions 1-1"),
            "{text}"
        );
    }
    // The roll goes on: nobody was shut out.
    lab.env.sleep(Duration::from_secs(1)).await;
    assert!(!old_node.is_finished());
    old_node.abort();
    lab.env.sleep(Duration::from_secs(5)).await;
    assert_eq!(
        ask(&controller, &raise.clone().with_validate_only(true)).await.0,
        0
    );
    assert_eq!(level(&controller), FeatureLevel::FIRST);
    assert_eq!(ask(&controller, &raise).await.0, 0);
    assert_eq!(level(&controller), FeatureLevel::PACKED_FILES);
    assert_eq!(ask(&controller, &raise).await.0, 0, "it is so already");
    let named = controller.update_features(&raise, 1).await.unwrap();
    assert_eq!(named.results[0].feature.as_str(), FEATURE);

    // Who comes late is told why it cannot come in; a controller of before does not become one.
    let answer = controller.heartbeat(&first_release, pending()).await;
    assert_eq!(answer.error_code, ResponseError::UnsupportedVersion.code());
    assert_eq!(answer.feature_level, Some(FeatureLevel::PACKED_FILES));
    let Err(End::Unsupported(text)) = open(&lab, 0, FeatureLevels::FIRST_RELEASE).await else {
        panic!("it leads a log that it cannot read")
    };
    assert!(text.contains("1-1") && text.contains(FEATURE), "{text}");
    let next = open(&lab, 3, FeatureLevels::SUPPORTED).await.unwrap();
    lab.env.sleep(Duration::from_secs(3)).await;
    assert_eq!(level(&next), FeatureLevel::PACKED_FILES);
}

#[tokio::test(start_paused = true)]
async fn a_new_cluster_has_the_highest_level_of_its_controller_and_none_is_lowered() {
    let lab = Lab::new();
    let controller = open(&lab, 0, FeatureLevels::SUPPORTED).await.unwrap();
    assert_eq!(level(&controller), FeatureLevel::PACKED_FILES);
    let other = update(1, UPGRADE).with_feature(StrBytes::from_static_str("metadata.version"));
    let cases = [
        (
            vec![update(1, UPGRADE)],
            "Can't downgrade the version of this feature without",
        ),
        (vec![update(1, SAFE_DOWNGRADE)], "cannot be lowered"),
        (
            vec![update(1, UPGRADE).with_allow_downgrade(true)],
            "cannot be lowered",
        ),
        (vec![update(0, 3)], "only supports versions 1-2"),
        (vec![update(3, UPGRADE)], "only supports versions 1-2"),
        (vec![update(2, 0)], "does not support the given upgrade type"),
        (
            vec![other.clone()],
            "Invalid update version 1 for feature metadata.version.",
        ),
        (vec![update(2, UPGRADE), other], "metadata.version"),
    ];
    for (updates, says) in cases {
        let (code, text) = ask(&controller, &request(&updates)).await;
        assert_eq!(code, REFUSED, "{updates:?}: {text}");
        assert!(text.contains(says), "{text}");
    }
    let twice = request(&[update(2, UPGRADE), update(2, UPGRADE)]);
    assert_eq!(
        ask(&controller, &twice).await.0,
        ResponseError::InvalidRequest.code()
    );
    assert_eq!(ask(&controller, &request(&[])).await.0, 0);
    assert_eq!(level(&controller), FeatureLevel::PACKED_FILES);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_does_not_know_its_nodes_yet_finalises_nothing() {
    let lab = Lab::new();
    open(&lab, 0, FeatureLevels::FIRST_RELEASE).await.unwrap();
    let controller = open(&lab, 1, FeatureLevels::SUPPORTED).await.unwrap();
    let hasty = request(&[update(2, UPGRADE)]).with_timeout_ms(100);
    assert_eq!(
        ask(&controller, &hasty).await.0,
        ResponseError::RequestTimedOut.code()
    );
    let patient = request(&[update(2, UPGRADE)]);
    assert_eq!(ask(&controller, &patient).await.0, 0);
}

fn state(levels: FeatureLevels, entries: &[Bytes]) -> Result<ClusterState, StateError> {
    let mut state = ClusterState::new(levels).0;
    state.apply(LogOffset(0), entries)?;
    Ok(state)
}

#[test]
fn a_level_is_kept_by_snapshots_and_hidden_from_nobody() {
    let format = Command::Format {
        cluster_id: "c".to_owned(),
        shards: 1,
        feature_level: FeatureLevel::PACKED_FILES,
    };
    let mut first = ClusterState::new(FeatureLevels::SUPPORTED).0;
    let entry = first.speculate(Timestamp(0), &format).unwrap().entry.unwrap();
    let formed = state(FeatureLevels::SUPPORTED, std::slice::from_ref(&entry)).unwrap();
    let snapshot = formed.snapshot().unwrap().1;
    let (mut restored, metadata) = ClusterState::new(FeatureLevels::SUPPORTED);
    restored.restore(LogOffset(0), snapshot.clone().into()).unwrap();
    assert_eq!(metadata.borrow().feature_level, FeatureLevel::PACKED_FILES);
    // The first release looks at the first byte.
    assert_eq!((entry[0], snapshot[0]), (1, 1));
    let old = FeatureLevels::FIRST_RELEASE;
    let by_entry = state(old, &[entry]).err().unwrap();
    let by_snapshot = ClusterState::new(old)
        .0
        .restore(LogOffset(0), snapshot.into())
        .unwrap_err();
    for error in [by_entry, by_snapshot] {
        assert!(matches!(error, StateError::Unsupported(_)), "{error}");
    }
}

#[test]
fn what_comes_after_this_release_is_refused_as_such() {
    let later = entry::encode(&vec![Change::FeatureLevel(FeatureLevel(3))]);
    let error = state(FeatureLevels::SUPPORTED, &[later]).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, StateError::Unsupported(_)), "{text}");
    assert!(
        text.contains("diskless.version 3") && text.contains("1-2"),
        "{text}"
    );
    let error = state(FeatureLevels::SUPPORTED, &[Bytes::from_static(&[2, 1])])
        .err()
        .unwrap();
    assert!(
        matches!(&error, StateError::Unsupported(text) if text.contains("version 2")),
        "{error}"
    );
}
