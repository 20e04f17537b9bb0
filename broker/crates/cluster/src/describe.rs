//! DescribeConfigs: what holds for a topic or a broker, and where it comes from.

use crate::configs::{DEFINITIONS, Definition, Kind, Rule};
use crate::image::{Broker, Config, DEFAULT_PARTITIONS, Topic};
use kafka_wire::StrBytes;
use kafka_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsSynonym,
};

/// Sources of a value (KIP-226).
const TOPIC_CONFIG: i8 = 1;
const STATIC_BROKER_CONFIG: i8 = 4;
const DEFAULT_CONFIG: i8 = 5;

/// A configuration of a topic as it holds.
pub(crate) struct Effective<'a> {
    pub definition: &'static Definition,
    pub value: &'a str,
    set: bool,
}

impl Effective<'_> {
    pub fn source(&self) -> i8 {
        if self.set { TOPIC_CONFIG } else { DEFAULT_CONFIG }
    }

    /// A value that is the only possible one.
    pub fn read_only(&self) -> bool {
        matches!(self.definition.rule, Rule::Only(..))
    }
}

/// All configurations of a topic of which `set` was set.
pub(crate) fn topic_configs(set: &[Config]) -> impl Iterator<Item = Effective<'_>> {
    DEFINITIONS.iter().map(|definition| {
        let own = set.iter().find(|config| config.name == definition.name);
        let value = own.map_or(definition.default, |config| config.value.as_str());
        Effective {
            definition,
            value,
            set: own.is_some(),
        }
    })
}

/// As in Kafka, null and an empty list both mean all keys.
fn wanted(keys: Option<&[StrBytes]>, name: &str) -> bool {
    keys.is_none_or(|keys| keys.is_empty() || keys.iter().any(|key| key.as_str() == name))
}

fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}

/// The configurations of a topic for DescribeConfigs 1-4: those named by `keys`, or all.
pub fn describe_topic(
    topic: &Topic,
    keys: Option<&[StrBytes]>,
    synonyms: bool,
    documentation: bool,
) -> Vec<DescribeConfigsResourceResult> {
    let configs = topic_configs(&topic.configs).filter(|config| wanted(keys, config.definition.name));
    configs
        .map(|config| {
            let definition = config.definition;
            let synonym = |name, value, source| {
                DescribeConfigsSynonym::default()
                    .with_name(StrBytes::from_static_str(name))
                    .with_value(Some(text(value)))
                    .with_source(source)
            };
            let own = config
                .set
                .then(|| synonym(definition.name, config.value, TOPIC_CONFIG));
            let fallback = (!definition.synonym.is_empty())
                .then(|| synonym(definition.synonym, definition.default, DEFAULT_CONFIG));
            DescribeConfigsResourceResult::default()
                .with_name(StrBytes::from_static_str(definition.name))
                .with_value(Some(text(config.value)))
                .with_read_only(config.read_only())
                .with_config_source(config.source())
                .with_synonyms(if synonyms {
                    own.into_iter().chain(fallback).collect()
                } else {
                    Vec::new()
                })
                .with_config_type(definition.kind.code())
                .with_documentation(
                    documentation.then(|| StrBytes::from_static_str(definition.documentation)),
                )
        })
        .collect()
}

/// A configuration of a broker. They can only be read: brokers are configured by their file.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// Kafka's name for it.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// Type of the value.
    pub kind: Kind,
    /// The value comes from the configuration file, otherwise it is the default.
    pub set: bool,
    /// For people.
    pub documentation: &'static str,
}

/// What a broker says of itself in Kafka's terms: its identity, where clients of unknown zone reach it, and the defaults
/// of topics. `default_partitions` is what the controller gives: no broker has a number of its own.
pub fn broker_configs(broker: &Broker, default_partitions: u32) -> Vec<BrokerConfig> {
    let id = broker.id;
    let set = |name, value: String, kind, documentation| BrokerConfig {
        name,
        value,
        kind,
        set: true,
        documentation,
    };
    let mut configs = vec![
        set(
            "advertised.listeners",
            format!("PLAINTEXT://{}:{}", broker.host, broker.port),
            Kind::List,
            "Where clients reach this broker.",
        ),
        set("broker.id", id.to_string(), Kind::Int, "Identity of this broker."),
        set(
            "broker.rack",
            broker.zone.clone(),
            Kind::String,
            "Zone of this broker.",
        ),
        set("node.id", id.to_string(), Kind::Int, "Identity of this broker."),
        BrokerConfig {
            name: "num.partitions",
            value: default_partitions.to_string(),
            kind: Kind::Int,
            set: default_partitions != DEFAULT_PARTITIONS,
            documentation: "Partitions of a topic created without a number.",
        },
        BrokerConfig {
            name: "default.replication.factor",
            value: "1".to_owned(),
            kind: Kind::Int,
            set: false,
            documentation: "Replication factor reported for topics created without one; the object store replicates.",
        },
    ];
    // Synonyms that are the topic configuration's own name, too, appear once.
    configs.extend(
        DEFINITIONS
            .iter()
            .filter(|definition| !definition.synonym.is_empty())
            .map(|definition| BrokerConfig {
                name: definition.synonym,
                value: definition.default.to_owned(),
                kind: definition.kind,
                set: false,
                documentation: definition.documentation,
            }),
    );
    configs.sort_by_key(|config| config.name);
    configs
}

/// The configurations of a broker for DescribeConfigs 1-4: those named by `keys`, or all.
pub fn describe_broker(
    configs: &[BrokerConfig],
    keys: Option<&[StrBytes]>,
    synonyms: bool,
    documentation: bool,
) -> Vec<DescribeConfigsResourceResult> {
    let configs = configs.iter().filter(|config| wanted(keys, config.name));
    configs
        .map(|config| {
            let source = if config.set {
                STATIC_BROKER_CONFIG
            } else {
                DEFAULT_CONFIG
            };
            let itself = DescribeConfigsSynonym::default()
                .with_name(StrBytes::from_static_str(config.name))
                .with_value(Some(text(&config.value)))
                .with_source(source);
            DescribeConfigsResourceResult::default()
                .with_name(StrBytes::from_static_str(config.name))
                .with_value(Some(text(&config.value)))
                .with_read_only(true)
                .with_config_source(source)
                .with_synonyms(if synonyms { vec![itself] } else { Vec::new() })
                .with_config_type(config.kind.code())
                .with_documentation(documentation.then(|| StrBytes::from_static_str(config.documentation)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use types::{NodeId, TopicId};

    use super::*;

    fn topic() -> Topic {
        let configs = vec![Config {
            name: "retention.ms".into(),
            value: "5".into(),
        }];
        Topic {
            id: TopicId::default(),
            name: "t".into(),
            partitions: Vec::new(),
            configs,
        }
    }

    #[test]
    fn all_keys_with_their_source_synonyms_and_type() {
        for keys in [None, Some(&[] as &[StrBytes])] {
            let all = describe_topic(&topic(), keys, true, true);
            assert_eq!(all.len(), DEFINITIONS.len());
            let of = |name: &str| all.iter().find(|config| config.name.as_str() == name).unwrap();
            let retention = of("retention.ms");
            assert_eq!(retention.value.as_deref(), Some("5"));
            assert_eq!((retention.config_source, retention.config_type), (1, 5));
            let synonyms: Vec<_> = retention
                .synonyms
                .iter()
                .map(|s| (s.name.as_str(), s.source))
                .collect();
            assert_eq!(synonyms, [("retention.ms", 1), ("log.retention.ms", 5)]);
            assert!(retention.documentation.is_some());
            assert_eq!(of("cleanup.policy").config_source, 5);
            assert!(of("cleanup.policy").read_only);
        }
    }

    #[test]
    fn keys_filter_and_unknown_ones_are_left_out() {
        let keys = [
            StrBytes::from_static_str("retention.ms"),
            StrBytes::from_static_str("no.such"),
        ];
        let some = describe_topic(&topic(), Some(&keys), false, false);
        assert_eq!(some.len(), 1);
        assert!(some[0].synonyms.is_empty() && some[0].documentation.is_none());
    }

    #[test]
    fn a_broker_names_each_key_once() {
        let broker = Broker {
            id: NodeId(1001),
            zone: "a".into(),
            host: "demo-a-0".into(),
            port: 9092,
            zone_ports: Vec::new(),
            internal: String::new(),
            draining: false,
            serves_objects: None,
        };
        let configs = broker_configs(&broker, 6);
        assert!(configs.windows(2).all(|pair| pair[0].name < pair[1].name));
        let keys = [StrBytes::from_static_str("num.partitions")];
        let described = describe_broker(&configs, Some(&keys), true, false);
        assert_eq!(described[0].value.as_deref(), Some("6"));
        assert!(described[0].read_only);
    }
}
