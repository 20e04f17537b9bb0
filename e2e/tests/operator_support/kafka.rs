//! The admin side of a Kafka broker, in memory: what the operator asks of brokers, answered from a map of topics
//! through a codec that is not the operator's.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    pub id: Uuid,
    pub partitions: i32,
    pub configs: BTreeMap<String, String>,
}

#[derive(Default)]
pub struct State {
    pub topics: BTreeMap<String, Topic>,
    /// Requests that change something.
    pub writes: usize,
    /// Finalised level of `diskless.version`, less 1.
    pub raised: i16,
}

/// Highest level of `diskless.version` that is supported.
pub const MAX_LEVEL: i16 = 2;

/// A broker that answers until it is dropped.
pub struct Kafka {
    pub address: String,
    pub state: Arc<Mutex<State>>,
    task: tokio::task::JoinHandle<()>,
}

impl Kafka {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
        let address = listener.local_addr().expect("address").to_string();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, shared.clone()));
            }
        });
        Self { address, state, task }
    }

    pub fn topic(&self, name: &str) -> Option<Topic> {
        self.state.lock().topics.get(name).cloned()
    }

    /// What another tool does.
    pub fn put(&self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Uuid {
        let configs = configs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let id = Uuid::new_v4();
        self.state.lock().topics.insert(
            name.to_owned(),
            Topic {
                id,
                partitions,
                configs,
            },
        );
        id
    }

    pub fn stop(&self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    while let Ok(len) = stream.read_i32().await {
        let mut frame = vec![0; len as usize];
        stream.read_exact(&mut frame).await.expect("frame");
        let answer = answer(Bytes::from(frame), &state);
        stream.write_all(&answer).await.expect("answer");
    }
}

fn answer(mut frame: Bytes, state: &Mutex<State>) -> Bytes {
    let (key, version) = (frame.clone().get_i16(), frame.slice(2..).get_i16());
    let api = ApiKey::try_from(key).expect("api key");
    let header = RequestHeader::decode(&mut frame, api.request_header_version(version)).expect("header");
    let mut out = BytesMut::new();
    out.put_i32(0);
    ResponseHeader::default()
        .with_correlation_id(header.correlation_id)
        .encode(&mut out, api.response_header_version(version))
        .expect("header");
    let mut state = state.lock();
    macro_rules! call {
        ($request:ty, $handler:ident) => {{
            let request = <$request>::decode(&mut frame, version).expect("request");
            let response = $handler(&mut state, request);
            let _ = <$request>::header_version(version);
            response.encode(&mut out, version).expect("response");
        }};
    }
    match api {
        ApiKey::Metadata => call!(MetadataRequest, metadata),
        ApiKey::CreateTopics => call!(CreateTopicsRequest, create_topics),
        ApiKey::CreatePartitions => call!(CreatePartitionsRequest, create_partitions),
        ApiKey::DeleteTopics => call!(DeleteTopicsRequest, delete_topics),
        ApiKey::DescribeConfigs => call!(DescribeConfigsRequest, describe_configs),
        ApiKey::ApiVersions => call!(ApiVersionsRequest, api_versions),
        ApiKey::UpdateFeatures => call!(UpdateFeaturesRequest, update_features),
        ApiKey::IncrementalAlterConfigs => call!(IncrementalAlterConfigsRequest, alter_configs),
        other => panic!("{other:?} is not asked for"),
    }
    assert!(frame.is_empty(), "bytes left of {api:?}");
    let len = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&len.to_be_bytes());
    out.freeze()
}

fn api_versions(state: &mut State, request: ApiVersionsRequest) -> ApiVersionsResponse {
    assert_eq!(request.client_software_name.as_str(), "diskless-operator");
    let name = text("diskless.version");
    let supported = SupportedFeatureKey::default()
        .with_name(name.clone())
        .with_min_version(1)
        .with_max_version(MAX_LEVEL);
    let level = state.raised + 1;
    let finalized = FinalizedFeatureKey::default()
        .with_name(name)
        .with_min_version_level(level)
        .with_max_version_level(level);
    ApiVersionsResponse::default()
        .with_api_keys(vec![ApiVersion::default()])
        .with_supported_features(vec![supported])
        .with_finalized_features_epoch(level.into())
        .with_finalized_features(vec![finalized])
}

fn update_features(state: &mut State, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse {
    let [update] = &request.feature_updates[..] else {
        panic!("{request:?}")
    };
    assert_eq!(
        (update.feature.as_str(), update.upgrade_type),
        ("diskless.version", 1)
    );
    assert!(update.max_version_level <= MAX_LEVEL, "{update:?}");
    if !request.validate_only {
        state.writes += 1;
        state.raised = update.max_version_level - 1;
    }
    UpdateFeaturesResponse::default()
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn metadata(state: &mut State, request: MetadataRequest) -> MetadataResponse {
    assert!(!request.allow_auto_topic_creation);
    let topics = request
        .topics
        .expect("no one asks for all topics")
        .into_iter()
        .map(|asked| {
            let name = asked.name.expect("by name");
            let answer = MetadataResponseTopic::default().with_name(Some(name.clone()));
            match state.topics.get(name.as_str()) {
                None => answer.with_error_code(3),
                Some(topic) => {
                    let partition = |index| MetadataResponsePartition::default().with_partition_index(index);
                    answer
                        .with_topic_id(topic.id)
                        .with_partitions((0..topic.partitions).map(partition).collect())
                }
            }
        });
    MetadataResponse::default()
        .with_cluster_id(Some(text("kafka-id")))
        .with_topics(topics.collect())
}

fn create_topics(state: &mut State, request: CreateTopicsRequest) -> CreateTopicsResponse {
    state.writes += 1;
    let created = request.topics.into_iter().map(|new| {
        assert_eq!(new.replication_factor, -1);
        let answer = CreatableTopicResult::default().with_name(new.name.clone());
        if state.topics.contains_key(new.name.as_str()) {
            return answer.with_error_code(36);
        }
        let configs = new
            .configs
            .iter()
            .map(|c| (c.name.to_string(), c.value.clone().expect("value").to_string()));
        let topic = Topic {
            id: Uuid::new_v4(),
            partitions: new.num_partitions,
            configs: configs.collect(),
        };
        if topic
            .configs
            .get("retention.ms")
            .is_some_and(|value| value == "13")
        {
            return answer
                .with_error_code(40)
                .with_error_message(Some(text("retention.ms cannot be 13")));
        }
        let answer = answer.with_topic_id(topic.id);
        state.topics.insert(new.name.to_string(), topic);
        answer
    });
    CreateTopicsResponse::default().with_topics(created.collect())
}

fn create_partitions(state: &mut State, request: CreatePartitionsRequest) -> CreatePartitionsResponse {
    state.writes += 1;
    let grown = request.topics.into_iter().map(|grown| {
        let topic = state.topics.get_mut(grown.name.as_str()).expect("topic");
        assert!(topic.partitions < grown.count);
        topic.partitions = grown.count;
        CreatePartitionsTopicResult::default().with_name(grown.name)
    });
    CreatePartitionsResponse::default().with_results(grown.collect())
}

fn delete_topics(state: &mut State, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
    state.writes += 1;
    let deleted = request.topics.into_iter().map(|doomed| {
        assert_eq!(doomed.name, None, "topics are deleted by id");
        let before = state.topics.len();
        state.topics.retain(|_, topic| topic.id != doomed.topic_id);
        let code = if state.topics.len() < before { 0 } else { 100 };
        DeletableTopicResult::default()
            .with_topic_id(doomed.topic_id)
            .with_error_code(code)
    });
    DeleteTopicsResponse::default().with_responses(deleted.collect())
}

fn describe_configs(state: &mut State, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
    let described = request.resources.into_iter().map(|resource| {
        let topic = &state.topics[resource.resource_name.as_str()];
        let set = topic
            .configs
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str(), 1));
        let configs = set
            .chain([("segment.bytes", "1073741824", 5)])
            .map(|(key, value, source)| {
                DescribeConfigsResourceResult::default()
                    .with_name(text(key))
                    .with_value(Some(text(value)))
                    .with_config_source(source)
            });
        DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name)
            .with_configs(configs.collect())
    });
    DescribeConfigsResponse::default().with_results(described.collect())
}

fn alter_configs(
    state: &mut State,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    state.writes += 1;
    let altered = request.resources.into_iter().map(|resource| {
        let topic = state
            .topics
            .get_mut(resource.resource_name.as_str())
            .expect("topic");
        for config in resource.configs {
            match config.config_operation {
                0 => topic
                    .configs
                    .insert(config.name.to_string(), config.value.expect("value").to_string()),
                1 => topic.configs.remove(config.name.as_str()),
                other => panic!("operation {other}"),
            };
        }
        AlterConfigsResourceResponse::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name)
    });
    IncrementalAlterConfigsResponse::default().with_responses(altered.collect())
}
