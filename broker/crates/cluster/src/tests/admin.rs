use kafka_wire::messages::alter_configs_request::{
    AlterConfigsResource as ReplaceResource, AlterableConfig as ReplacedConfig,
};
use kafka_wire::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic,
};
use kafka_wire::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use kafka_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use kafka_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_wire::messages::{AlterConfigsRequest, BrokerId, IncrementalAlterConfigsRequest};
use kafka_wire::{ResponseError, StrBytes};
use uuid::Uuid;

use super::{Lab, creatable, create, name, visible};
use crate::ControllerService;
use crate::protocol::AllocateProducerIdsRequest;

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn assigned(partitions: &[(i32, &[i32])]) -> CreatableTopic {
    let assignments = partitions.iter().map(|(index, brokers)| {
        CreatableReplicaAssignment::default()
            .with_partition_index(*index)
            .with_broker_ids(brokers.iter().map(|id| BrokerId(*id)).collect())
    });
    creatable("assigned", -1).with_assignments(assignments.collect())
}

fn with_config(key: &'static str, value: &'static str) -> CreatableTopic {
    let config = CreatableTopicConfig::default()
        .with_name(text(key))
        .with_value(Some(text(value)));
    creatable("configured", 1).with_configs(vec![config])
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_new_topic_is_said() {
    use ResponseError as E;
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a", "b"]).await;
    create(&controller, vec![creatable("taken", 1), creatable("with.dot", 1)]).await;
    let cases = [
        (creatable("taken", 1), E::TopicAlreadyExists, "already exists"),
        (creatable("with_dot", 1), E::InvalidTopicException, "with.dot"),
        (creatable("no/slash", 1), E::InvalidTopicException, "no/slash"),
        (creatable("t", 0), E::InvalidPartitions, "partitions"),
        (creatable("t", -2), E::InvalidPartitions, "partitions"),
        (creatable("t", i32::MAX), E::PolicyViolation, "10000"),
        (
            creatable("t", 1).with_replication_factor(0),
            E::InvalidReplicationFactor,
            "Replication factor",
        ),
        (
            creatable("t", 1).with_replication_factor(-2),
            E::InvalidReplicationFactor,
            "Replication factor",
        ),
        (
            with_config("cleanup.policy", "compact"),
            E::InvalidConfig,
            "cleanup.policy",
        ),
        (with_config("no.such.key", "1"), E::InvalidConfig, "no.such.key"),
        (
            assigned(&[(0, &[0])]).with_num_partitions(1),
            E::InvalidRequest,
            "numPartitions",
        ),
        (assigned(&[(1, &[0])]), E::InvalidReplicaAssignment, "consecutive"),
        (
            assigned(&[(0, &[0]), (1, &[0, 1])]),
            E::InvalidReplicaAssignment,
            "number of replicas",
        ),
        (assigned(&[(0, &[0, 0])]), E::InvalidReplicaAssignment, "twice"),
        (assigned(&[(0, &[77])]), E::InvalidReplicaAssignment, "77"),
        (
            assigned(&[(0, &[])]),
            E::InvalidReplicaAssignment,
            "names no broker",
        ),
    ];
    for (topic, error, says) in cases {
        for validate_only in [true, false] {
            let request = CreateTopicsRequest::default()
                .with_topics(vec![topic.clone()])
                .with_timeout_ms(1_000)
                .with_validate_only(validate_only);
            let answer = &controller.create_topics(&request).await.unwrap().topics[0];
            assert_eq!(answer.error_code, error.code(), "{topic:?}: {answer:?}");
            assert!(
                answer.error_message.as_ref().unwrap().contains(says),
                "{answer:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_created_topic_is_reported_as_it_is_and_known_everywhere() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a", "b"]).await;
    let topics = vec![
        with_config("retention.ms", "5")
            .with_num_partitions(-1)
            .with_replication_factor(3),
        assigned(&[(1, &[1, 0]), (0, &[0, 1])]),
        creatable("twice", 1),
        creatable("twice", 2),
    ];
    let answer = create(&controller, topics).await;
    assert_eq!(answer.topics.len(), 3, "one answer for each name");
    let [one, two, twice] = &answer.topics[..] else {
        panic!()
    };
    assert_eq!(
        (one.error_code, one.num_partitions, one.replication_factor),
        (0, 1, 3)
    );
    let configs = one.configs.as_ref().unwrap();
    let retention = configs
        .iter()
        .find(|config| config.name.as_str() == "retention.ms")
        .unwrap();
    assert_eq!(
        (retention.value.as_deref(), retention.config_source),
        (Some("5"), 1)
    );
    assert!(configs.len() > 20);
    assert_eq!(
        (two.error_code, two.num_partitions, two.replication_factor),
        (0, 2, 2)
    );
    assert_eq!(twice.error_code, ResponseError::InvalidRequest.code());
    assert!(visible(&controller, "twice").is_none());
    assert_eq!(one.topic_id, visible(&controller, "configured").unwrap().id.0);
    assert!(controller.image().is_some());

    let request = CreateTopicsRequest::default()
        .with_topics(vec![creatable("dry", 4)])
        .with_validate_only(true);
    let dry = &controller.create_topics(&request).await.unwrap().topics[0];
    assert_eq!((dry.error_code, dry.num_partitions), (0, 4));
    assert!(visible(&controller, "dry").is_none());
}

async fn grow(controller: &ControllerService, topic: CreatePartitionsTopic, dry: bool) -> (i16, String) {
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000)
        .with_validate_only(dry);
    let answer = controller.create_partitions(&request).await.unwrap();
    let result = &answer.results[0];
    (
        result.error_code,
        result.error_message.as_deref().unwrap_or_default().to_owned(),
    )
}

#[tokio::test(start_paused = true)]
async fn partitions_only_grow() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a"]).await;
    create(&controller, vec![creatable("t", 3)]).await;
    let to = |count| {
        CreatePartitionsTopic::default()
            .with_name(name("t"))
            .with_count(count)
            .with_assignments(None)
    };
    let invalid = ResponseError::InvalidPartitions.code();
    assert_eq!(
        grow(&controller, to(3), false).await,
        (invalid, "Topic already has 3 partition(s).".into())
    );
    for count in [2, 0, -1] {
        let (code, says) = grow(&controller, to(count), false).await;
        assert_eq!(code, invalid);
        assert!(
            says.contains(&format!(
                "currently has 3 partition(s); {count} would not be an increase"
            )),
            "{says}"
        );
    }
    let two_of_one = CreatePartitionsAssignment::default().with_broker_ids(vec![BrokerId(0)]);
    let (code, says) = grow(&controller, to(5).with_assignments(Some(vec![two_of_one])), false).await;
    assert_eq!(code, ResponseError::InvalidReplicaAssignment.code());
    assert!(says.contains("2 additional partition(s)"));
    assert_eq!(grow(&controller, to(5), true).await.0, 0);
    assert_eq!(visible(&controller, "t").unwrap().partitions.len(), 3);
    assert_eq!(grow(&controller, to(5), false).await.0, 0);
    assert_eq!(visible(&controller, "t").unwrap().partitions.len(), 5);
    let (code, _) = grow(&controller, to(5).with_name(name("missing")), false).await;
    assert_eq!(code, ResponseError::UnknownTopicOrPartition.code());
}

#[tokio::test(start_paused = true)]
async fn topics_are_deleted_by_name_and_by_id() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a"]).await;
    create(&controller, vec![creatable("a", 1), creatable("b", 1)]).await;
    let a = visible(&controller, "a").unwrap().id.0;
    let state = |topic: Option<&str>, id| {
        DeleteTopicState::default()
            .with_name(topic.map(name))
            .with_topic_id(id)
    };
    let request = DeleteTopicsRequest::default()
        .with_timeout_ms(30_000)
        .with_topics(vec![
            state(None, a),
            state(Some("missing"), Uuid::nil()),
            state(None, Uuid::from_u128(5)),
            state(Some("b"), a),
            state(None, Uuid::nil()),
        ]);
    // An id that is also named beside a name is a request against itself.
    let answer = controller.delete_topics(&request).await.unwrap();
    assert_eq!(answer.responses.len(), 5);
    let request = DeleteTopicsRequest::default()
        .with_timeout_ms(30_000)
        .with_topics(vec![
            state(None, a),
            state(Some("missing"), Uuid::nil()),
            state(None, Uuid::from_u128(5)),
        ]);
    let answer = controller.delete_topics(&request).await.unwrap();
    let codes: Vec<i16> = answer.responses.iter().map(|result| result.error_code).collect();
    let (missing, unknown) = (
        ResponseError::UnknownTopicOrPartition.code(),
        ResponseError::UnknownTopicId.code(),
    );
    assert_eq!(codes, [0, missing, unknown]);
    assert_eq!(answer.responses[0].name, Some(name("a")));
    assert!(visible(&controller, "a").is_none() && visible(&controller, "b").is_some());
}

async fn set(
    controller: &ControllerService,
    kind: i8,
    of: &str,
    op: i8,
    key: &'static str,
    value: Option<&'static str>,
) -> (i16, String) {
    let config = AlterableConfig::default()
        .with_name(text(key))
        .with_config_operation(op)
        .with_value(value.map(text));
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(StrBytes::from_string(of.to_owned()))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let answer = controller.incremental_alter_configs(&request).await.unwrap();
    let result = &answer.responses[0];
    assert_eq!((result.resource_type, result.resource_name.as_str()), (kind, of));
    (
        result.error_code,
        result.error_message.as_deref().unwrap_or_default().to_owned(),
    )
}

#[tokio::test(start_paused = true)]
async fn configurations_are_altered_and_published() {
    use ResponseError as E;
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a"]).await;
    create(&controller, vec![creatable("t", 1)]).await;
    let config = |key: &str| visible(&controller, "t").unwrap().config(key).map(str::to_owned);
    assert_eq!(set(&controller, 2, "t", 0, "retention.ms", Some("7")).await.0, 0);
    assert_eq!(config("retention.ms").as_deref(), Some("7"));
    for (kind, of, op, key, value, error, says) in [
        (
            2,
            "missing",
            0,
            "retention.ms",
            Some("7"),
            E::UnknownTopicOrPartition,
            "missing",
        ),
        (
            2,
            "t",
            0,
            "retention.ms",
            Some("x"),
            E::InvalidConfig,
            "retention.ms",
        ),
        (2, "t", 0, "retention.ms", None, E::InvalidRequest, "retention.ms"),
        (2, "t", 2, "retention.ms", Some("7"), E::InvalidConfig, "LIST"),
        (
            2,
            "t",
            9,
            "retention.ms",
            Some("7"),
            E::InvalidRequest,
            "operation",
        ),
        (
            2,
            "t",
            0,
            "cleanup.policy",
            Some("compact"),
            E::InvalidConfig,
            "not compacted",
        ),
        (
            4,
            "1001",
            0,
            "log.retention.ms",
            Some("7"),
            E::InvalidRequest,
            "configuration file",
        ),
        (16, "x", 0, "a", Some("7"), E::InvalidRequest, "16"),
    ] {
        let (code, text) = set(&controller, kind, of, op, key, value).await;
        assert_eq!(code, error.code(), "{text}");
        assert!(text.contains(says), "{text}");
    }
    // AlterConfigs forgets what it does not name.
    let config_of = |key, value| {
        ReplacedConfig::default()
            .with_name(text(key))
            .with_value(Some(text(value)))
    };
    let resource = ReplaceResource::default()
        .with_resource_type(2)
        .with_resource_name(text("t"))
        .with_configs(vec![config_of("max.message.bytes", "9")]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    assert_eq!(
        controller.alter_configs(&request).await.unwrap().responses[0].error_code,
        0
    );
    assert_eq!(
        (config("retention.ms"), config("max.message.bytes").as_deref()),
        (None, Some("9"))
    );
    assert_eq!(set(&controller, 2, "t", 1, "max.message.bytes", None).await.0, 0);
    assert_eq!(config("max.message.bytes"), None);
}

#[tokio::test(start_paused = true)]
async fn producer_ids_stay_unique_over_controllers() {
    let lab = Lab::new();
    let mut next = 0;
    for id in 0..3 {
        let controller = lab.controller(id).await;
        for _ in 0..2 {
            let answer = controller
                .allocate_producer_ids(&AllocateProducerIdsRequest {
                    node: types::NodeId(id),
                })
                .await;
            assert_eq!((answer.error_code, answer.first), (0, next));
            next += i64::from(answer.count);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_many_topics_are_taken_apart() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a"]).await;
    let names: Vec<String> = (0..150).map(|number| format!("t{number}")).collect();
    let answer = create(&controller, names.iter().map(|name| creatable(name, 1)).collect()).await;
    let created: Vec<(&str, i16)> = answer
        .topics
        .iter()
        .map(|t| (t.name.as_str(), t.error_code))
        .collect();
    assert_eq!(
        created,
        names.iter().map(|name| (name.as_str(), 0)).collect::<Vec<_>>()
    );

    // What a request asks for is bounded as a whole.
    let large = (0..3)
        .map(|number| creatable(&format!("large{number}"), 4_000))
        .collect();
    let codes: Vec<i16> = create(&controller, large)
        .await
        .topics
        .iter()
        .map(|t| t.error_code)
        .collect();
    assert_eq!(codes, [0, 0, ResponseError::PolicyViolation.code()]);

    let request = DeleteTopicsRequest::default()
        .with_topic_names(names.iter().map(|topic| name(topic)).collect())
        .with_timeout_ms(30_000);
    let answer = controller.delete_topics(&request).await.unwrap();
    assert!(answer.responses.iter().all(|result| result.error_code == 0));
    assert_eq!(controller.image().unwrap().topics.len(), 2);
}
