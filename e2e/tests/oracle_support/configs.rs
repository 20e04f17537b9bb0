//! Configurations, described and changed.

use e2e::wire::text;
use kafka_protocol::messages::alter_configs_request::{
    AlterConfigsResource as ReplaceResource, AlterableConfig as ReplaceConfig,
};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, DescribeConfigsResponse, IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
};

use super::Case;
use super::flatten::Field;
use super::side::Side;

pub const CASES: &[Case] = &[
    ("configs/describe", describe),
    ("configs/every-key", every_key),
    ("configs/alter", alter),
    ("configs/lists", lists),
    ("configs/replace", replace),
    ("configs/list", list),
];

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

fn resource(kind: i8, name: &str, keys: Option<&[&str]>) -> DescribeConfigsResource {
    DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(keys.map(|keys| keys.iter().map(|key| text(key)).collect()))
}

/// By name, and with whether there is a documentation: its words are each broker's own.
fn in_order(answer: &mut DescribeConfigsResponse) -> Vec<Field> {
    let mut documented = Vec::new();
    for (i, result) in answer.results.iter_mut().enumerate() {
        result.configs.sort_by_key(|config| config.name.clone());
        for (j, config) in result.configs.iter_mut().enumerate() {
            let path = format!("results[{i}].configs[{j}].documented");
            documented.push((path, config.documentation.take().is_some().to_string()));
        }
    }
    documented
}

/// The keys that a client of every kind reads.
const KEYS: &[&str] = &[
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.type",
    "retention.bytes",
    "retention.ms",
];

fn describe(side: &mut Side) -> anyhow::Result<()> {
    side.topic(
        "described",
        1,
        &[("retention.ms", "5000"), ("max.message.bytes", "2000")],
    )?;
    for version in 1..=4 {
        for (synonyms, documentation) in [(false, false), (true, version >= 3)] {
            let request = DescribeConfigsRequest::default()
                .with_include_synonyms(synonyms)
                .with_include_documentation(documentation);
            let mut ask = |what: &str, resources: Vec<DescribeConfigsResource>| {
                let request = request.clone().with_resources(resources);
                side.ask_tidy(
                    format!("{what}, synonyms {synonyms}"),
                    version,
                    &request,
                    in_order,
                )
            };
            ask("some keys", vec![resource(TOPIC, "described", Some(KEYS))])?;
            ask(
                "unknown key",
                vec![resource(
                    TOPIC,
                    "described",
                    Some(&["no.such.key", "retention.ms"]),
                )],
            )?;
            ask(
                "keys of a broker",
                vec![resource(TOPIC, "described", Some(&["log.retention.ms"]))],
            )?;
            ask("unknown topic", vec![resource(TOPIC, "nowhere", None)])?;
            ask("no topic", vec![resource(TOPIC, "", None)])?;
            ask("illegal topic", vec![resource(TOPIC, "a/b", None)])?;
            ask("nothing", Vec::new())?;
            ask(
                "twice",
                vec![
                    resource(TOPIC, "described", Some(&["retention.ms"])),
                    resource(TOPIC, "described", Some(&["retention.ms"])),
                ],
            )?;
            ask("unknown broker", vec![resource(BROKER, "99", None)])?;
            ask("a broker by no number", vec![resource(BROKER, "one", None)])?;
            ask("all brokers", vec![resource(BROKER, "", None)])?;
            ask(
                "a broker",
                vec![resource(
                    BROKER,
                    "1",
                    Some(&["num.partitions", "log.retention.ms", "no.such.key"]),
                )],
            )?;
            for kind in [0, 1, 3, 9, 127] {
                ask(&format!("resource type {kind}"), vec![resource(kind, "x", None)])?;
            }
        }
    }
    Ok(())
}

/// All keys of a topic: a tool shows them, and sets them elsewhere.
fn every_key(side: &mut Side) -> anyhow::Result<()> {
    side.topic("plain", 1, &[])?;
    for keys in [None, Some(&[][..])] {
        let request = DescribeConfigsRequest::default()
            .with_include_synonyms(true)
            .with_include_documentation(true)
            .with_resources(vec![resource(TOPIC, "plain", keys)]);
        side.ask_tidy(
            format!("all keys, named {}", keys.is_some()),
            4,
            &request,
            |answer| {
                let configs = std::mem::take(&mut answer.results[0].configs);
                let mut fields = Vec::new();
                for config in configs {
                    let mut put = |name: &str, value: String| {
                        fields.push((format!("{}: {name}", config.name.as_str()), value))
                    };
                    put("value", format!("{:?}", config.value));
                    put("read only", config.read_only.to_string());
                    put("sensitive", config.is_sensitive.to_string());
                    put("source", config.config_source.to_string());
                    put("type", config.config_type.to_string());
                    put("documented", config.documentation.is_some().to_string());
                    let synonyms = config.synonyms.iter();
                    let synonyms = synonyms.map(|synonym| {
                        format!(
                            "{}={:?} from {}",
                            synonym.name.as_str(),
                            synonym.value,
                            synonym.source
                        )
                    });
                    put("synonyms", synonyms.collect::<Vec<_>>().join(", "));
                }
                fields
            },
        )?;
    }
    Ok(())
}

/// A change of keys: name, operation, value.
type Change<'a> = (&'a str, i8, Option<&'a str>);

fn altered(kind: i8, name: &str, changes: &[Change<'_>]) -> AlterConfigsResource {
    let change = |(name, operation, value): &Change<'_>| {
        AlterableConfig::default()
            .with_name(text(name))
            .with_config_operation(*operation)
            .with_value(value.map(text))
    };
    AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(changes.iter().map(change).collect())
}

fn alter_all(
    side: &mut Side,
    what: &str,
    version: i16,
    judge: bool,
    resources: Vec<AlterConfigsResource>,
) -> anyhow::Result<()> {
    let request = IncrementalAlterConfigsRequest::default()
        .with_validate_only(judge)
        .with_resources(resources);
    side.ask_tidy(
        format!("{what}, validate only {judge}"),
        version,
        &request,
        |answer| {
            answer
                .responses
                .sort_by_key(|resource| (resource.resource_type, resource.resource_name.clone()));
            Vec::new()
        },
    )?;
    Ok(())
}

/// What the topic has after a change: its own keys.
fn own_keys(side: &mut Side, what: &str, topic: &str) -> anyhow::Result<()> {
    // It comes to the broker from the controller, after the answer: and before what was done after it.
    side.topic(&format!("after-{}", side.steps.len()), 1, &[])?;
    let request = DescribeConfigsRequest::default().with_resources(vec![resource(TOPIC, topic, None)]);
    side.ask_tidy(format!("keys after {what}"), 4, &request, |answer| {
        answer.results[0]
            .configs
            .retain(|config| config.config_source == 1);
        in_order(answer)
    })?;
    Ok(())
}

fn alter(side: &mut Side) -> anyhow::Result<()> {
    side.topic("altered", 1, &[("retention.ms", "5000")])?;
    for version in 0..=1 {
        for judge in [true, false] {
            let changes: &[(&str, &[Change<'_>])] = &[
                ("set", &[("retention.bytes", SET, Some("7"))]),
                ("set with spaces", &[("retention.bytes", SET, Some(" 8 "))]),
                ("set to null", &[("retention.bytes", SET, None)]),
                ("delete", &[("retention.ms", DELETE, None)]),
                ("delete with a value", &[("retention.ms", DELETE, Some("1"))]),
                ("delete what is not set", &[("segment.ms", DELETE, None)]),
                ("unknown key", &[("no.such.key", SET, Some("1"))]),
                ("delete an unknown key", &[("no.such.key", DELETE, None)]),
                ("key of a broker", &[("log.retention.ms", SET, Some("1"))]),
                ("no number", &[("retention.ms", SET, Some("soon"))]),
                ("too low", &[("retention.ms", SET, Some("-2"))]),
                ("empty", &[("retention.ms", SET, Some(""))]),
                ("append to a number", &[("retention.ms", APPEND, Some("1"))]),
                ("subtract from a number", &[("retention.ms", SUBTRACT, Some("1"))]),
                ("unknown operation", &[("retention.ms", 9, Some("1"))]),
                (
                    "a key twice",
                    &[("retention.ms", SET, Some("1")), ("retention.ms", DELETE, None)],
                ),
                (
                    "good and bad",
                    &[
                        ("retention.bytes", SET, Some("9")),
                        ("retention.ms", SET, Some("x")),
                    ],
                ),
                ("nothing", &[]),
            ];
            for (what, changes) in changes {
                alter_all(
                    side,
                    what,
                    version,
                    judge,
                    vec![altered(TOPIC, "altered", changes)],
                )?;
            }
            own_keys(side, "all that", "altered")?;
            let good: &[Change<'_>] = &[("retention.bytes", SET, Some("7"))];
            alter_all(
                side,
                "unknown topic",
                version,
                judge,
                vec![altered(TOPIC, "nowhere", good)],
            )?;
            alter_all(side, "no topic", version, judge, vec![altered(TOPIC, "", good)])?;
            alter_all(side, "nobody", version, judge, Vec::new())?;
            let twice = vec![altered(TOPIC, "altered", good), altered(TOPIC, "altered", good)];
            alter_all(side, "a topic twice", version, judge, twice)?;
            alter_all(
                side,
                "unknown broker",
                version,
                judge,
                vec![altered(BROKER, "99", good)],
            )?;
            alter_all(
                side,
                "a read-only key of a broker",
                version,
                judge,
                vec![altered(BROKER, "1", &[("node.id", SET, Some("2"))])],
            )?;
            for kind in [0, 1, 9] {
                alter_all(
                    side,
                    &format!("resource type {kind}"),
                    version,
                    judge,
                    vec![altered(kind, "x", good)],
                )?;
            }
        }
    }
    Ok(())
}

fn lists(side: &mut Side) -> anyhow::Result<()> {
    let key = "leader.replication.throttled.replicas";
    side.topic("lists", 1, &[])?;
    for (what, changes) in [
        ("append", &[(key, APPEND, Some("0:1"))][..]),
        ("append again", &[(key, APPEND, Some("0:1,0:2"))]),
        ("subtract", &[(key, SUBTRACT, Some("0:1"))]),
        ("subtract what is not in it", &[(key, SUBTRACT, Some("5:5"))]),
        ("append nothing", &[(key, APPEND, Some(""))]),
        ("append null", &[(key, APPEND, None)]),
        ("subtract the last", &[(key, SUBTRACT, Some("0:2"))]),
        ("append what is none", &[(key, APPEND, Some("x"))]),
        ("set to nothing", &[(key, SET, Some(""))]),
        (
            "append the only policy",
            &[("cleanup.policy", APPEND, Some("delete"))],
        ),
        (
            "subtract the only policy",
            &[("cleanup.policy", SUBTRACT, Some("delete"))],
        ),
    ] {
        alter_all(side, what, 1, false, vec![altered(TOPIC, "lists", changes)])?;
        own_keys(side, what, "lists")?;
    }
    Ok(())
}

fn replace(side: &mut Side) -> anyhow::Result<()> {
    side.topic("replaced", 1, &[("retention.ms", "5000")])?;
    for version in 0..=2 {
        for (what, topic, configs) in [
            ("other keys", "replaced", &[("retention.bytes", Some("7"))][..]),
            ("bad value", "replaced", &[("retention.bytes", Some("x"))]),
            ("null", "replaced", &[("retention.bytes", None)]),
            ("unknown key", "replaced", &[("no.such.key", Some("1"))]),
            ("unknown topic", "nowhere", &[("retention.bytes", Some("7"))]),
            ("nothing", "replaced", &[]),
        ] {
            let config = |(name, value): &(&str, Option<&str>)| {
                ReplaceConfig::default()
                    .with_name(text(name))
                    .with_value(value.map(text))
            };
            let resource = ReplaceResource::default()
                .with_resource_type(TOPIC)
                .with_resource_name(text(topic))
                .with_configs(configs.iter().map(config).collect());
            let request = AlterConfigsRequest::default().with_resources(vec![resource]);
            side.ask(what, version, &request)?;
            own_keys(side, what, "replaced")?;
        }
    }
    Ok(())
}

fn list(side: &mut Side) -> anyhow::Result<()> {
    for version in 0..=1 {
        for kinds in [&[][..], &[16], &[4], &[2], &[8], &[32], &[9], &[4, 16]] {
            if version == 0 && !kinds.is_empty() {
                continue;
            }
            let request = ListConfigResourcesRequest::default().with_resource_types(kinds.to_vec());
            side.ask_tidy(
                format!("resources of types {kinds:?}"),
                version,
                &request,
                |answer| {
                    // Topics are those of other cases, too.
                    answer
                        .config_resources
                        .retain(|resource| resource.resource_type != TOPIC);
                    answer
                        .config_resources
                        .sort_by_key(|resource| (resource.resource_type, resource.resource_name.clone()));
                    Vec::new()
                },
            )?;
        }
    }
    Ok(())
}
