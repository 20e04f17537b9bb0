//! The cluster, its topics and their administration.

use bytes::{BufMut, Bytes};
use e2e::wire::{text, topic_name};
use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::Case;
use super::flatten::Field;
use super::requests::nowhere;
use super::side::Side;

pub const CASES: &[Case] = &[
    ("cluster/metadata", metadata),
    ("cluster/create-on-sight", create_on_sight),
    ("cluster/describe", describe),
    ("cluster/create", create),
    ("cluster/create-configs", create_configs),
    ("cluster/create-assigned", create_assigned),
    ("cluster/partitions", partitions),
    ("cluster/delete", delete),
    ("cluster/versions", versions),
];

fn named(name: &str) -> MetadataRequestTopic {
    MetadataRequestTopic::default().with_name(Some(topic_name(name)))
}

/// Topics that Kafka keeps for itself are none of ours.
fn without_internal(answer: &mut MetadataResponse) -> Vec<Field> {
    answer.topics.retain(|topic| !topic.is_internal);
    answer.topics.sort_by_key(|topic| topic.name.clone());
    Vec::new()
}

fn metadata(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("seen", 3, &[])?;
    for version in 0..=13 {
        let request = MetadataRequest::default().with_allow_auto_topic_creation(version < 4);
        let asked = |topics| request.clone().with_topics(topics);
        // Only how many: other cases have topics, too.
        let count = |answer: &mut MetadataResponse| {
            let seen = answer
                .topics
                .iter()
                .any(|topic| topic.name == Some(topic_name("seen")));
            answer.topics.clear();
            vec![("seen".to_owned(), seen.to_string())]
        };
        side.ask_tidy("an empty list", version, &asked(Some(Vec::new())), count)?;
        if version >= 1 {
            side.ask_tidy("all", version, &asked(None), count)?;
        }
        side.ask("one", version, &asked(Some(vec![named("seen")])))?;
        side.ask(
            "twice the same",
            version,
            &asked(Some(vec![named("seen"), named("seen")])),
        )?;
        if version >= 4 {
            for name in ["nowhere", "", ".", "..", "no/slash", "a b", "é", &"x".repeat(250)] {
                side.ask(format!("{:.10?}", name), version, &asked(Some(vec![named(name)])))?;
            }
            side.ask_tidy(
                "one of two",
                version,
                &asked(Some(vec![named("seen"), named("nowhere")])),
                without_internal,
            )?;
        }
        if version >= 10 {
            let by_id = |id| MetadataRequestTopic::default().with_topic_id(id).with_name(None);
            for (what, id) in [
                ("its id", topic.id),
                ("unknown id", nowhere().id),
                ("no id", Uuid::nil()),
            ] {
                side.ask(what, version, &asked(Some(vec![by_id(id)])))?;
            }
            let both = named("seen").with_topic_id(topic.id);
            side.ask("name and id", version, &asked(Some(vec![both])))?;
            let mixed = vec![by_id(topic.id), named("seen")];
            side.ask("by name and by id", version, &asked(Some(mixed)))?;
        }
        if version >= 8 {
            let request = asked(Some(vec![named("seen")])).with_include_topic_authorized_operations(true);
            side.ask("with operations", version, &request)?;
        }
        if (8..=10).contains(&version) {
            let request = asked(Some(vec![named("seen")])).with_include_cluster_authorized_operations(true);
            side.ask("with operations of the cluster", version, &request)?;
        }
    }
    Ok(())
}

/// Topics that come to be because somebody asks for them.
fn create_on_sight(side: &mut Side) -> anyhow::Result<()> {
    for version in [0, 1, 4, 9, 12, 13] {
        let name = format!("sight-{version}");
        let request = |name: &str| MetadataRequest::default().with_topics(Some(vec![named(name)]));
        // Kafka answers before the topic is there, we after that: both are what a client makes of the next answer.
        side.quiet(version, &request(&name))?;
        side.until("it is there", |side| {
            let answer = side.quiet(version, &request(&name))?;
            Ok((answer.topics[0].error_code == 0).then_some(()))
        })?;
        side.ask("created on sight", version, &request(&name))?;
        side.ask("an illegal name", version, &request("no/slash"))?;
        if version >= 4 {
            let refused = request("not-wanted").with_allow_auto_topic_creation(false);
            side.ask("not wanted", version, &refused)?;
        }
    }
    Ok(())
}

fn describe(side: &mut Side) -> anyhow::Result<()> {
    for version in 0..=2 {
        let request = DescribeClusterRequest::default();
        side.ask("the cluster", version, &request)?;
        let request = request.with_include_cluster_authorized_operations(true);
        side.ask("with operations", version, &request)?;
        if version >= 1 {
            for endpoints in [2, 3] {
                let request = DescribeClusterRequest::default().with_endpoint_type(endpoints);
                side.ask(format!("endpoints {endpoints}"), version, &request)?;
            }
        }
    }
    for version in 0..=6 {
        for (what, key_type) in [
            ("group", 0),
            ("transaction", 1),
            ("share group", 2),
            ("nothing", 9),
        ] {
            if key_type != 0 && version == 0 {
                continue;
            }
            let request = FindCoordinatorRequest::default().with_key_type(key_type);
            let keys = |keys: &[&str]| match version {
                0..=3 => request.clone().with_key(text(keys[0])),
                _ => request
                    .clone()
                    .with_coordinator_keys(keys.iter().map(|key| text(key)).collect()),
            };
            // A transaction's coordinator takes its time to come.
            side.quiet(version, &keys(&["a"])).ok();
            side.ask(format!("coordinator of a {what}"), version, &keys(&["a"]))?;
            side.ask(
                format!("coordinator of a {what} without a name"),
                version,
                &keys(&[""]),
            )?;
            if version >= 4 {
                side.ask(
                    format!("coordinators of {what}s"),
                    version,
                    &keys(&["b", "a", "a"]),
                )?;
                side.ask(format!("coordinators of no {what}"), version, &keys(&[]))?;
            }
        }
    }
    Ok(())
}

fn creatable(name: &str, partitions: i32, factor: i16) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(factor)
}

/// Creates (or only judges), and notes all but the configurations.
fn create_all(
    side: &mut Side,
    what: &str,
    version: i16,
    judge: bool,
    topics: Vec<CreatableTopic>,
) -> anyhow::Result<()> {
    let request = CreateTopicsRequest::default()
        .with_timeout_ms(30_000)
        .with_validate_only(judge)
        .with_topics(topics);
    side.ask_tidy(what, version, &request, |answer| {
        answer.topics.sort_by_key(|topic| topic.name.clone());
        if judge {
            // An id that nobody will have: only whether there is one.
            let some = answer.topics.iter_mut().filter(|topic| !topic.topic_id.is_nil());
            some.for_each(|topic| topic.topic_id = nowhere().id);
        }
        let configs = answer.topics.iter_mut().map(|topic| topic.configs.take());
        let state = configs
            .map(|configs| configs.map_or("null", |list| if list.is_empty() { "empty" } else { "some" }));
        let field = (0..)
            .zip(state)
            .map(|(index, state): (i32, _)| (format!("topics[{index}].configurations"), state.to_owned()));
        field.collect()
    })?;
    Ok(())
}

fn create(side: &mut Side) -> anyhow::Result<()> {
    side.topic("taken", 1, &[])?;
    side.topic("with.dots", 1, &[])?;
    let long = "x".repeat(250);
    for version in 2..=7 {
        for judge in [true, false] {
            let what = |what: &str| format!("{what}, validate only {judge}");
            for (text, name, partitions, factor) in [
                ("exists", "taken", 1, 1),
                ("empty name", "", 1, 1),
                ("dot", ".", 1, 1),
                ("dots", "..", 1, 1),
                ("slash", "a/b", 1, 1),
                ("space", "a b", 1, 1),
                ("not ASCII", "é", 1, 1),
                ("250 characters", &long, 1, 1),
                ("collides", "with_dots", 1, 1),
                ("no partitions", "bad", 0, 1),
                ("partitions below none", "bad", -2, 1),
                ("no replicas", "bad", 1, 0),
                ("replicas below none", "bad", 1, -2),
                ("exists, and no partitions", "taken", 0, 1),
                ("Kafka's own topic", "__consumer_offsets", 1, 1),
            ] {
                create_all(
                    side,
                    &what(text),
                    version,
                    judge,
                    vec![creatable(name, partitions, factor)],
                )?;
            }
            create_all(side, &what("nothing"), version, judge, Vec::new())?;
            let twice = vec![
                creatable("twice", 1, 1),
                creatable("twice", 1, 1),
                creatable("taken", 1, 1),
            ];
            create_all(side, &what("twice"), version, judge, twice)?;
            let name = format!("new-{version}");
            create_all(side, &what("good"), version, judge, vec![creatable(&name, 3, 1)])?;
            if version >= 4 {
                let name = format!("default-{version}");
                create_all(
                    side,
                    &what("defaults"),
                    version,
                    judge,
                    vec![creatable(&name, -1, -1)],
                )?;
            }
            let name = format!("mixed-{version}");
            let mixed = vec![
                creatable(&name, 1, 1),
                creatable("taken", 1, 1),
                creatable("bad", 0, 1),
            ];
            create_all(side, &what("good and bad"), version, judge, mixed)?;
        }
    }
    create_all(
        side,
        "more replicas than brokers",
        7,
        true,
        vec![creatable("replicas", 1, 3)],
    )?;
    Ok(())
}

/// Configurations of a topic.
type Configs<'a> = &'a [(&'a str, Option<&'a str>)];

fn create_configs(side: &mut Side) -> anyhow::Result<()> {
    let with = |configs: Configs<'_>| {
        let config = |(name, value): &(&str, Option<&str>)| {
            CreatableTopicConfig::default()
                .with_name(text(name))
                .with_value(value.map(text))
        };
        creatable("configured", 1, 1).with_configs(configs.iter().map(config).collect())
    };
    let cases: &[(&str, Configs<'_>)] = &[
        (
            "good",
            &[
                ("retention.ms", Some("1000")),
                ("max.message.bytes", Some(" 2000 ")),
            ],
        ),
        ("unknown key", &[("no.such.key", Some("1"))]),
        ("key of a broker", &[("log.retention.ms", Some("1"))]),
        ("empty key", &[("", Some("1"))]),
        ("null", &[("retention.ms", None)]),
        ("empty", &[("retention.ms", Some(""))]),
        ("no number", &[("retention.ms", Some("soon"))]),
        ("too low", &[("retention.ms", Some("-2"))]),
        ("too high", &[("max.message.bytes", Some("2147483648"))]),
        ("negative size", &[("max.message.bytes", Some("-1"))]),
        ("wrong word", &[("message.timestamp.type", Some("Whenever"))]),
        ("wrong policy", &[("cleanup.policy", Some("burn"))]),
        ("no policy", &[("cleanup.policy", Some(""))]),
        ("policy twice", &[("cleanup.policy", Some("delete,delete"))]),
        ("wrong codec", &[("compression.type", Some("brotli"))]),
        ("wrong truth", &[("preallocate", Some("maybe"))]),
        (
            "fraction too large",
            &[("min.cleanable.dirty.ratio", Some("1.5"))],
        ),
        ("small segments", &[("segment.bytes", Some("1000"))]),
        ("no replicas in sync", &[("min.insync.replicas", Some("0"))]),
        (
            "retention below local retention",
            &[("retention.ms", Some("10")), ("local.retention.ms", Some("20"))],
        ),
        (
            "one of two",
            &[("retention.ms", Some("1000")), ("retention.bytes", Some("x"))],
        ),
        (
            "throttled replicas",
            &[("leader.replication.throttled.replicas", Some("0:1"))],
        ),
        (
            "throttled replicas that are none",
            &[("leader.replication.throttled.replicas", Some("x"))],
        ),
        ("compaction", &[("cleanup.policy", Some("compact"))]),
        ("recompression", &[("compression.type", Some("zstd"))]),
        ("tiering", &[("remote.storage.enable", Some("true"))]),
        (
            "minimum lag over maximum",
            &[
                ("min.compaction.lag.ms", Some("10")),
                ("max.compaction.lag.ms", Some("5")),
            ],
        ),
    ];
    for (what, configs) in cases {
        create_all(side, what, 7, true, vec![with(configs)])?;
    }
    let twice = vec![with(&[("retention.ms", Some("1")), ("retention.ms", Some("2"))])];
    create_all(side, "a key twice", 7, true, twice)?;
    Ok(())
}

fn create_assigned(side: &mut Side) -> anyhow::Result<()> {
    let with = |partitions, factor, assignments: &[(i32, &[i32])]| {
        let assignment = |(index, brokers): &(i32, &[i32])| {
            CreatableReplicaAssignment::default()
                .with_partition_index(*index)
                .with_broker_ids(brokers.iter().map(|id| BrokerId(*id)).collect())
        };
        creatable("assigned", partitions, factor)
            .with_assignments(assignments.iter().map(assignment).collect())
    };
    for version in [2, 5, 7] {
        for (what, partitions, factor, assignments) in [
            ("good", -1, -1, &[(0, &[1][..]), (1, &[1])][..]),
            ("out of order", -1, -1, &[(1, &[1]), (0, &[1])]),
            ("with a number of partitions", 1, -1, &[(0, &[1])]),
            ("with a replication factor", -1, 1, &[(0, &[1])]),
            ("with a gap", -1, -1, &[(0, &[1]), (2, &[1])]),
            ("from one", -1, -1, &[(1, &[1])]),
            ("a partition twice", -1, -1, &[(0, &[1]), (0, &[1])]),
            ("negative", -1, -1, &[(-1, &[1])]),
            ("no broker", -1, -1, &[(0, &[])]),
            ("unknown broker", -1, -1, &[(0, &[99])]),
            ("a broker twice", -1, -1, &[(0, &[1, 1])]),
            ("of different size", -1, -1, &[(0, &[1]), (1, &[1, 1])]),
        ] {
            create_all(
                side,
                what,
                version,
                true,
                vec![with(partitions, factor, assignments)],
            )?;
        }
    }
    Ok(())
}

fn partitions(side: &mut Side) -> anyhow::Result<()> {
    let grow = |name: &str, count: i32, assignments: Option<&[&[i32]]>| {
        let assignment = |brokers: &&[i32]| {
            CreatePartitionsAssignment::default()
                .with_broker_ids(brokers.iter().map(|id| BrokerId(*id)).collect())
        };
        CreatePartitionsTopic::default()
            .with_name(topic_name(name))
            .with_count(count)
            .with_assignments(assignments.map(|all| all.iter().map(assignment).collect()))
    };
    for version in 0..=3 {
        let name = format!("grows-{version}");
        side.topic(&name, 2, &[])?;
        for judge in [true, false] {
            let mut ask = |what: &str, topics: Vec<CreatePartitionsTopic>| {
                let request = CreatePartitionsRequest::default()
                    .with_timeout_ms(30_000)
                    .with_validate_only(judge)
                    .with_topics(topics);
                side.ask_tidy(
                    format!("{what}, validate only {judge}"),
                    version,
                    &request,
                    |answer| {
                        answer.results.sort_by_key(|result| result.name.clone());
                        Vec::new()
                    },
                )
            };
            ask("fewer", vec![grow(&name, 1, None)])?;
            ask("as many", vec![grow(&name, 2, None)])?;
            ask("none", vec![grow(&name, 0, None)])?;
            ask("below none", vec![grow(&name, -1, None)])?;
            ask("unknown topic", vec![grow("nowhere", 3, None)])?;
            ask("empty name", vec![grow("", 3, None)])?;
            ask("twice", vec![grow(&name, 3, None), grow(&name, 4, None)])?;
            ask("nothing", Vec::new())?;
            ask("too few assignments", vec![grow(&name, 4, Some(&[&[1]]))])?;
            ask("too many assignments", vec![grow(&name, 3, Some(&[&[1], &[1]]))])?;
            ask("no assignments", vec![grow(&name, 3, Some(&[]))])?;
            ask("unknown broker", vec![grow(&name, 3, Some(&[&[99]]))])?;
            ask("no broker", vec![grow(&name, 3, Some(&[&[]]))])?;
            ask("a broker twice", vec![grow(&name, 3, Some(&[&[1, 1]]))])?;
            ask("good", vec![grow(&name, 3, Some(&[&[1]]))])?;
            ask("more", vec![grow(&name, 5, None), grow("nowhere", 5, None)])?;
        }
        side.until("it has grown", |side| {
            let request = MetadataRequest::default().with_topics(Some(vec![named(&name)]));
            Ok((side.quiet(9, &request)?.topics[0].partitions.len() == 5).then_some(()))
        })?;
    }
    Ok(())
}

fn delete(side: &mut Side) -> anyhow::Result<()> {
    for version in 1..=6 {
        let (one, two) = (format!("gone-{version}"), format!("going-{version}"));
        let first = side.topic(&one, 1, &[])?;
        side.topic(&two, 1, &[])?;
        let by_name = |names: &[&str]| {
            let request = DeleteTopicsRequest::default().with_timeout_ms(30_000);
            if version < 6 {
                return request.with_topic_names(names.iter().map(|name| topic_name(name)).collect());
            }
            let state = |name: &&str| DeleteTopicState::default().with_name(Some(topic_name(name)));
            request.with_topics(names.iter().map(state).collect())
        };
        let mut ask = |what: &str, request: &DeleteTopicsRequest| {
            side.ask_tidy(what, version, request, |answer| {
                answer
                    .responses
                    .sort_by_key(|topic| (topic.name.clone(), topic.topic_id));
                Vec::new()
            })
        };
        ask("unknown topic", &by_name(&["nowhere"]))?;
        ask("empty name", &by_name(&[""]))?;
        ask("illegal name", &by_name(&["a/b"]))?;
        ask("nothing", &by_name(&[]))?;
        ask("twice", &by_name(&[&two, &two]))?;
        if version >= 6 {
            let by_id = |name: Option<&str>, id| {
                let state = DeleteTopicState::default()
                    .with_name(name.map(topic_name))
                    .with_topic_id(id);
                DeleteTopicsRequest::default()
                    .with_timeout_ms(30_000)
                    .with_topics(vec![state])
            };
            ask("unknown id", &by_id(None, nowhere().id))?;
            ask("neither name nor id", &by_id(None, Uuid::nil()))?;
            ask("name and id", &by_id(Some(&one), first.id))?;
            ask("by its id", &by_id(None, first.id))?;
            ask("by its id again", &by_id(None, first.id))?;
        } else {
            ask("by its name", &by_name(&[&one]))?;
        }
        ask("one and one that is gone", &by_name(&[&one, &two]))?;
        ask("again", &by_name(&[&two]))?;
    }
    Ok(())
}

/// Requests of APIs and versions that are not served.
fn versions(side: &mut Side) -> anyhow::Result<()> {
    let frame = |key: i16, version: i16, rest: &[u8]| {
        let mut out = Vec::new();
        out.put_i32(0);
        out.put_i16(key);
        out.put_i16(version);
        out.put_i32(7);
        out.put_i16(3);
        out.extend(b"abc");
        out.extend(rest);
        let length = i32::try_from(out.len() - 4).expect("small");
        out[..4].copy_from_slice(&length.to_be_bytes());
        Bytes::from(out)
    };
    // The header of a flexible version ends in tags.
    for (what, version, rest) in [
        ("negative", -1, &[][..]),
        ("the next but one", 6, &[0]),
        ("far too new", 99, &[0, 1, 2, 3]),
        ("largest", i16::MAX, &[]),
    ] {
        side.raw(&format!("ApiVersions, {what}"), &frame(18, version, rest))?;
    }
    for (what, key, version) in [
        ("Produce 2", 0, 2),
        ("Produce 99", 0, 99),
        ("Fetch 3", 1, 3),
        ("Metadata 99", 3, 99),
        ("LeaderAndIsr", 4, 0),
        ("an API of nobody's", 999, 0),
        ("a negative API", -1, 0),
        ("CreateTopics 1", 19, 1),
    ] {
        side.raw(what, &frame(key, version, &[0; 12]))?;
    }
    side.raw("Metadata cut short", &frame(3, 1, &[0, 0, 0, 5]))?;
    side.raw("Metadata of many topics", &frame(3, 1, &[0x7f, 0xff, 0xff, 0xff]))?;
    // Group "g", generation 1, member "m", then what nobody reads.
    let heartbeat = [0, 1, b'g', 0, 0, 0, 1, 0, 1, b'm', 1, 2, 3];
    side.raw("Heartbeat with bytes behind it", &frame(12, 0, &heartbeat))?;
    side.raw("a frame longer than any", &i32::MAX.to_be_bytes())?;
    side.raw("a frame of more than 100 MiB", &104_857_601_i32.to_be_bytes())?;
    side.raw("a negative frame", &(-1_i32).to_be_bytes())?;
    side.raw("an empty frame", &0_i32.to_be_bytes())?;
    for (what, name, version) in [
        ("named", "oracle", "1.0"),
        ("without a name", "", "1"),
        ("without a version", "oracle", ""),
        ("with spaces", "an oracle", "1"),
        ("with odd ends", "-oracle-", "1"),
        ("with a long name", &"x".repeat(300), "1"),
    ] {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_string(name.to_owned()))
            .with_client_software_version(text(version));
        for api_version in [3, 4] {
            side.ask_tidy(what, api_version, &request, tables)?;
        }
    }
    for version in 0..=2 {
        side.ask_tidy("plain", version, &ApiVersionsRequest::default(), tables)?;
    }
    Ok(())
}

/// What each serves is in the list of what is served; here only how it is said.
fn tables(answer: &mut ApiVersionsResponse) -> Vec<Field> {
    let some = !answer.api_keys.is_empty();
    answer.api_keys.clear();
    (answer.finalized_features_epoch, answer.zk_migration_ready) = (-1, false);
    answer.supported_features.clear();
    answer.finalized_features.clear();
    vec![("lists versions".to_owned(), some.to_string())]
}
