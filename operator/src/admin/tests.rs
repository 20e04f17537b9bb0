//! The messages against an independent codec, and the client against a scripted broker.

use kafka_protocol::messages as kp;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request as KpRequest, StrBytes};
use proptest::prelude::*;

use super::*;

fn name(text: &str) -> kp::TopicName {
    kp::TopicName(StrBytes::from_string(text.to_owned()))
}

/// Decodes our frame with kafka-protocol.
fn read_by_kafka<R: Request, K: KpRequest + Decodable>(request: &R) -> K {
    let mut frame = encode(request, 7);
    assert_eq!(frame.get_i32() as usize, frame.len());
    let header = kp::RequestHeader::decode(&mut frame, K::header_version(R::VERSION)).unwrap();
    assert_eq!(
        (header.request_api_key, header.request_api_version),
        (K::KEY, R::VERSION)
    );
    assert_eq!(header.client_id.as_deref(), Some(CLIENT_ID));
    let body = K::decode(&mut frame, R::VERSION).unwrap();
    assert!(frame.is_empty());
    body
}

/// Encodes with kafka-protocol what our decoder reads.
fn written_by_kafka<R: Request, K: Encodable + HeaderVersion>(body: &K) -> R::Response {
    let mut frame = BytesMut::new();
    let header = kp::ResponseHeader::default().with_correlation_id(7);
    header.encode(&mut frame, K::header_version(R::VERSION)).unwrap();
    body.encode(&mut frame, R::VERSION).unwrap();
    decode::<R>(frame.freeze(), 7).unwrap()
}

#[test]
fn requests_are_what_kafka_reads() {
    let body: kp::CreateTopicsRequest = read_by_kafka(&CreateTopicsRequest {
        topics: vec![NewTopic {
            name: "orders".into(),
            num_partitions: 6,
            replication_factor: -1,
            assignments: vec![],
            configs: vec![NewTopicConfig {
                name: "retention.ms".into(),
                value: NullableString(Some("1".into())),
            }],
        }],
        timeout_ms: 5,
        validate_only: false,
    });
    assert_eq!(body.topics[0].name, name("orders"));
    assert_eq!(
        (body.topics[0].num_partitions, body.topics[0].replication_factor),
        (6, -1)
    );
    assert_eq!(body.topics[0].configs[0].value.as_deref(), Some("1"));

    let body: kp::MetadataRequest = read_by_kafka(&MetadataRequest {
        topics: NullableArray(Some(vec![MetadataRequestTopic {
            topic_id: Uuid::nil(),
            name: NullableString(Some("orders".into())),
        }])),
        allow_auto_topic_creation: false,
        include_topic_authorized_operations: false,
    });
    assert_eq!(body.topics.unwrap()[0].name, Some(name("orders")));

    let id = Uuid::from_u128(9);
    let body: kp::DeleteTopicsRequest = read_by_kafka(&DeleteTopicsRequest {
        topics: vec![TopicToDelete {
            name: NullableString(None),
            topic_id: id,
        }],
        timeout_ms: 5,
    });
    assert_eq!((body.topics[0].topic_id, body.topics[0].name.clone()), (id, None));

    let body: kp::CreatePartitionsRequest = read_by_kafka(&CreatePartitionsRequest {
        topics: vec![GrownTopic {
            name: "orders".into(),
            count: 12,
            assignments: NullableArray(None),
        }],
        timeout_ms: 5,
        validate_only: false,
    });
    assert_eq!(
        (body.topics[0].count, body.topics[0].assignments.clone()),
        (12, None)
    );

    let body: kp::DescribeConfigsRequest = read_by_kafka(&DescribeConfigsRequest {
        resources: vec![DescribedResource {
            resource_type: 2,
            resource_name: "orders".into(),
            configuration_keys: NullableArray(None),
        }],
        include_synonyms: false,
        include_documentation: false,
    });
    assert_eq!(body.resources[0].configuration_keys, None);

    let body: kp::IncrementalAlterConfigsRequest = read_by_kafka(&IncrementalAlterConfigsRequest {
        resources: vec![AlteredResource {
            resource_type: 2,
            resource_name: "orders".into(),
            configs: vec![AlteredConfig {
                name: "retention.ms".into(),
                config_operation: 1,
                value: NullableString(None),
            }],
        }],
        validate_only: false,
    });
    assert_eq!(body.resources[0].configs[0].config_operation, 1);
}

#[test]
fn features_are_what_kafka_reads_and_writes() {
    use super::features::{ApiVersionsRequest, FeatureUpdate, UpdateFeaturesRequest};
    use kp::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};

    let body: kp::ApiVersionsRequest = read_by_kafka(&ApiVersionsRequest {
        client_software_name: "o".into(),
        client_software_version: "1".into(),
    });
    assert_eq!(body.client_software_version.as_str(), "1");
    let body: kp::UpdateFeaturesRequest = read_by_kafka(&UpdateFeaturesRequest {
        timeout_ms: 5,
        feature_updates: vec![FeatureUpdate {
            feature: "diskless.version".into(),
            max_version_level: 2,
            upgrade_type: 1,
        }],
        validate_only: true,
    });
    let update = &body.feature_updates[0];
    assert_eq!(
        (update.max_version_level, update.upgrade_type, body.validate_only),
        (2, 1, true)
    );

    let feature = StrBytes::from_static_str("diskless.version");
    let supported = SupportedFeatureKey::default()
        .with_name(feature.clone())
        .with_min_version(1)
        .with_max_version(3);
    let finalized = FinalizedFeatureKey::default()
        .with_name(feature)
        .with_min_version_level(2)
        .with_max_version_level(2);
    let body = kp::ApiVersionsResponse::default()
        .with_api_keys(vec![ApiVersion::default(); 3])
        .with_supported_features(vec![supported])
        .with_finalized_features_epoch(2)
        .with_finalized_features(vec![finalized]);
    let read = written_by_kafka::<ApiVersionsRequest, _>(&body);
    let supported = &read.supported.unwrap()[0];
    assert_eq!((supported.min_version, supported.max_version), (1, 3));
    assert_eq!(read.finalized.unwrap()[0].max_version_level, 2);
    // A release that knows no features.
    let body = kp::ApiVersionsResponse::default().with_api_keys(vec![ApiVersion::default()]);
    assert_eq!(written_by_kafka::<ApiVersionsRequest, _>(&body).supported, None);

    let body = kp::UpdateFeaturesResponse::default()
        .with_error_code(95)
        .with_error_message(Some(StrBytes::from_static_str("node 7")));
    let read = written_by_kafka::<UpdateFeaturesRequest, _>(&body);
    assert_eq!(
        (read.error_code, read.error_message.0.as_deref()),
        (95, Some("node 7"))
    );
}

#[test]
fn responses_are_what_kafka_writes() {
    let id = Uuid::from_u128(9);
    let partition = kp::metadata_response::MetadataResponsePartition::default()
        .with_replica_nodes(vec![kp::BrokerId(1)])
        .with_isr_nodes(vec![kp::BrokerId(1)]);
    let topic = kp::metadata_response::MetadataResponseTopic::default()
        .with_name(Some(name("orders")))
        .with_topic_id(id)
        .with_partitions(vec![partition; 3]);
    let broker = kp::metadata_response::MetadataResponseBroker::default()
        .with_rack(Some(StrBytes::from_static_str("a")));
    let body = kp::MetadataResponse::default()
        .with_topics(vec![topic])
        .with_brokers(vec![broker]);
    let read = written_by_kafka::<MetadataRequest, _>(&body);
    assert_eq!(
        (read.topics[0].topic_id, read.topics[0].partitions.len()),
        (id, 3)
    );

    let config = kp::create_topics_response::CreatableTopicConfigs::default();
    let topic = kp::create_topics_response::CreatableTopicResult::default()
        .with_topic_id(id)
        .with_error_message(Some(StrBytes::from_static_str("no")))
        .with_topic_config_error_code(29)
        .with_configs(Some(vec![config]));
    let body = kp::CreateTopicsResponse::default().with_topics(vec![topic]);
    let read = written_by_kafka::<CreateTopicsRequest, _>(&body);
    assert_eq!(read.topics[0].topic_id, id);
    assert_eq!(read.topics[0].error_message.0.as_deref(), Some("no"));

    let config = kp::describe_configs_response::DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str("retention.ms"))
        .with_value(Some(StrBytes::from_static_str("1")))
        .with_config_source(1)
        .with_synonyms(vec![Default::default()]);
    let result = kp::describe_configs_response::DescribeConfigsResult::default().with_configs(vec![config]);
    let body = kp::DescribeConfigsResponse::default().with_results(vec![result]);
    let read = written_by_kafka::<DescribeConfigsRequest, _>(&body);
    assert_eq!(read.results[0].configs[0].config_source, 1);

    let result = kp::delete_topics_response::DeletableTopicResult::default().with_topic_id(id);
    let body = kp::DeleteTopicsResponse::default().with_responses(vec![result]);
    assert_eq!(
        written_by_kafka::<DeleteTopicsRequest, _>(&body).responses[0].topic_id,
        id
    );

    let result = kp::create_partitions_response::CreatePartitionsTopicResult::default().with_error_code(37);
    let body = kp::CreatePartitionsResponse::default().with_results(vec![result]);
    assert_eq!(
        written_by_kafka::<CreatePartitionsRequest, _>(&body).results[0].error_code,
        37
    );

    let result =
        kp::incremental_alter_configs_response::AlterConfigsResourceResponse::default().with_error_code(40);
    let body = kp::IncrementalAlterConfigsResponse::default().with_responses(vec![result]);
    assert_eq!(
        written_by_kafka::<IncrementalAlterConfigsRequest, _>(&body).responses[0].error_code,
        40
    );
}

proptest! {
    /// An answer of any bytes is an error or a value, never a panic or a large allocation.
    #[test]
    fn any_answer_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let frame = |bytes: &[u8]| {
            let mut frame = BytesMut::from(&[0, 0, 0, 7, 0][..]);
            frame.extend_from_slice(bytes);
            frame.freeze()
        };
        let _ = decode::<MetadataRequest>(frame(&bytes), 7);
        let _ = decode::<DescribeConfigsRequest>(frame(&bytes), 7);
        let _ = decode::<CreateTopicsRequest>(frame(&bytes), 7);
        let _ = decode::<super::features::ApiVersionsRequest>(frame(&bytes), 7);
    }
}

/// A broker that reads one request and answers with these bytes.
async fn broker_that_says(env: &Env, answer: &'static [u8]) -> String {
    let mut listener = env.listen("127.0.0.1:0").await.unwrap();
    let address = listener.address().to_owned();
    env.spawn(async move {
        let mut stream = listener.accept().await.unwrap();
        let len = stream.read_i32().await.unwrap();
        let mut request = vec![0; len as usize];
        stream.read_exact(&mut request).await.unwrap();
        stream.write_all(answer).await.unwrap();
    });
    address
}

#[tokio::test]
async fn a_stranger_at_the_address_is_an_error_in_words() {
    let env = Env::production();
    let address = broker_that_says(&env, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let mut admin = Admin::connect(&env, Arc::default(), &address).await.unwrap();
    let error = admin.describe("orders").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Metadata failed: the answer is not a Kafka response"
    );

    let address = broker_that_says(&env, &[0, 0, 0, 9, 0, 0]).await;
    let mut admin = Admin::connect(&env, Arc::default(), &address).await.unwrap();
    let error = admin.describe("orders").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Metadata failed: the connection ended within the answer"
    );
}

#[tokio::test]
async fn nobody_at_the_address_is_unreachable() {
    let env = Env::production();
    let address = env.listen("127.0.0.1:0").await.unwrap().address().to_owned();
    let error = Admin::connect(&env, Arc::default(), &address).await.unwrap_err();
    assert!(matches!(error, AdminError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
}
