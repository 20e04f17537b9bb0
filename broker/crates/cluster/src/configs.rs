//! The topic configurations that are served: names, types, defaults and rules are Apache Kafka's.
//!
//! Many of Kafka's topic configurations speak of local segments, replicas or compaction, which a diskless topic does
//! not have. They are accepted and checked like Kafka does, because tools set them without asking, and the documentation of
//! each says that it has no effect. What would change what a client reads (compaction, recompression) is refused.

use std::collections::BTreeMap;

use kafka_wire::ResponseError;

use crate::ApiError;
use crate::image::{Config, Topic};

/// Most bytes that names and values of one topic may take together.
const MAX_BYTES: usize = 32 * 1024;

/// Type of a value, as DescribeConfigs names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// Text.
    String,
    /// 32 bits, signed.
    Int,
    /// 64 bits, signed.
    Long,
    /// A number with a fraction.
    Double,
    /// Items separated by commas.
    List,
}

impl Kind {
    /// `ConfigType` on the wire (KIP-569).
    pub fn code(self) -> i8 {
        match self {
            Kind::Boolean => 1,
            Kind::String => 2,
            Kind::Int => 3,
            Kind::Long => 5,
            Kind::Double => 6,
            Kind::List => 7,
        }
    }
}

/// What a value must satisfy beside its type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    Any,
    AtLeast(i64),
    /// Between 0 and 1.
    Fraction,
    OneOf(&'static [&'static str]),
    /// This value alone, and why.
    Only(&'static str, &'static str),
}

/// One topic configuration.
#[derive(Debug)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// Type of its value.
    pub kind: Kind,
    /// What holds unless it is set.
    pub default: &'static str,
    /// The broker configuration it would fall back to in Kafka; empty: none.
    pub synonym: &'static str,
    /// For people.
    pub documentation: &'static str,
    pub(crate) rule: Rule,
}

const fn define(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    synonym: &'static str,
    rule: Rule,
    documentation: &'static str,
) -> Definition {
    Definition {
        name,
        kind,
        default,
        synonym,
        documentation,
        rule,
    }
}

const MAX: &str = "9223372036854775807";
const UNUSED: &str = "Accepted for compatibility; has no effect on a diskless topic.";

/// All of them, by name.
#[rustfmt::skip]
pub static DEFINITIONS: &[Definition] = &[
    define("cleanup.policy", Kind::List, "delete", "log.cleanup.policy",
        Rule::Only("delete", "diskless topics are not compacted"),
        "What happens to old records: `delete` discards them by retention.ms and retention.bytes."),
    define("compression.gzip.level", Kind::Int, "-1", "compression.gzip.level", Rule::AtLeast(-1), UNUSED),
    define("compression.lz4.level", Kind::Int, "9", "compression.lz4.level", Rule::AtLeast(1), UNUSED),
    define("compression.type", Kind::String, "producer", "compression.type",
        Rule::Only("producer", "diskless topics keep batches as the producer compressed them"),
        "`producer`: batches stay as the producer compressed them."),
    define("compression.zstd.level", Kind::Int, "3", "compression.zstd.level", Rule::AtLeast(-131_072), UNUSED),
    define("delete.retention.ms", Kind::Long, "86400000", "log.cleaner.delete.retention.ms", Rule::AtLeast(0), UNUSED),
    define("diskless.enable", Kind::Boolean, "true", "",
        Rule::Only("true", "every topic of this cluster is diskless"),
        "True for every topic of this cluster: its records are kept in the object store (KIP-1163)."),
    define("errors.deadletterqueue.group.enable", Kind::Boolean, "false", "", Rule::Any, UNUSED),
    define("file.delete.delay.ms", Kind::Long, "60000", "log.segment.delete.delay.ms", Rule::AtLeast(0), UNUSED),
    define("flush.messages", Kind::Long, MAX, "log.flush.interval.messages", Rule::AtLeast(1), UNUSED),
    define("flush.ms", Kind::Long, MAX, "log.flush.interval.ms", Rule::AtLeast(0), UNUSED),
    define("follower.replication.throttled.replicas", Kind::List, "", "", Rule::Any, UNUSED),
    define("index.interval.bytes", Kind::Int, "4096", "log.index.interval.bytes", Rule::AtLeast(0), UNUSED),
    define("leader.replication.throttled.replicas", Kind::List, "", "", Rule::Any, UNUSED),
    define("local.retention.bytes", Kind::Long, "-2", "log.local.retention.bytes", Rule::AtLeast(-2), UNUSED),
    define("local.retention.ms", Kind::Long, "-2", "log.local.retention.ms", Rule::AtLeast(-2), UNUSED),
    define("max.compaction.lag.ms", Kind::Long, MAX, "log.cleaner.max.compaction.lag.ms", Rule::AtLeast(1), UNUSED),
    define("max.decompressed.message.bytes", Kind::Int, "2147483639", "max.decompressed.message.bytes", Rule::AtLeast(1), UNUSED),
    define("max.message.bytes", Kind::Int, "1048588", "message.max.bytes", Rule::AtLeast(0),
        "Largest record batch (after compression) that is accepted, in bytes."),
    define("message.timestamp.after.max.ms", Kind::Long, "3600000", "log.message.timestamp.after.max.ms", Rule::AtLeast(0),
        "How far the timestamp of a record may be ahead of the broker's clock, in milliseconds, under CreateTime."),
    define("message.timestamp.before.max.ms", Kind::Long, MAX, "log.message.timestamp.before.max.ms", Rule::AtLeast(0),
        "How far the timestamp of a record may be behind the broker's clock, in milliseconds, under CreateTime."),
    define("message.timestamp.type", Kind::String, "CreateTime", "log.message.timestamp.type",
        Rule::OneOf(&["CreateTime", "LogAppendTime"]),
        "Whose time a record carries: the producer's (CreateTime) or that of its commit (LogAppendTime)."),
    define("min.cleanable.dirty.ratio", Kind::Double, "0.5", "log.cleaner.min.cleanable.ratio", Rule::Fraction, UNUSED),
    define("min.compaction.lag.ms", Kind::Long, "0", "log.cleaner.min.compaction.lag.ms", Rule::AtLeast(0), UNUSED),
    define("min.insync.replicas", Kind::Int, "1", "min.insync.replicas", Rule::AtLeast(1),
        "Accepted for compatibility; the object store replicates, every acknowledged record is durable."),
    define("preallocate", Kind::Boolean, "false", "log.preallocate", Rule::Any, UNUSED),
    define("remote.copy.lag.bytes", Kind::Long, "-1", "log.remote.copy.lag.bytes", Rule::AtLeast(-2), UNUSED),
    define("remote.copy.lag.ms", Kind::Long, "0", "log.remote.copy.lag.ms", Rule::AtLeast(-2), UNUSED),
    define("remote.log.copy.disable", Kind::Boolean, "false", "", Rule::Any, UNUSED),
    define("remote.log.delete.on.disable", Kind::Boolean, "false", "", Rule::Any, UNUSED),
    define("remote.storage.enable", Kind::Boolean, "false", "",
        Rule::Only("false", "diskless topics live in the object store as they are"), UNUSED),
    define("retention.bytes", Kind::Long, "-1", "log.retention.bytes", Rule::Any,
        "Size a partition may reach before its oldest records are discarded, in bytes; -1: no limit."),
    define("retention.ms", Kind::Long, "604800000", "log.retention.ms", Rule::AtLeast(-1),
        "Age at which records are discarded, in milliseconds; -1: never."),
    define("segment.bytes", Kind::Int, "1073741824", "log.segment.bytes", Rule::AtLeast(1_048_576), UNUSED),
    define("segment.index.bytes", Kind::Int, "10485760", "log.index.size.max.bytes", Rule::AtLeast(4), UNUSED),
    define("segment.jitter.ms", Kind::Long, "0", "log.roll.jitter.ms", Rule::AtLeast(0), UNUSED),
    define("segment.ms", Kind::Long, "604800000", "log.roll.ms", Rule::AtLeast(1), UNUSED),
    define("unclean.leader.election.enable", Kind::Boolean, "false", "unclean.leader.election.enable", Rule::Any, UNUSED),
];

/// The definition of a topic configuration.
pub fn definition(name: &str) -> Option<&'static Definition> {
    DEFINITIONS.iter().find(|definition| definition.name == name)
}

fn invalid(message: String) -> ApiError {
    ApiError::new(ResponseError::InvalidConfig, message)
}

fn known(name: &str) -> Result<&'static Definition, ApiError> {
    definition(name).ok_or_else(|| invalid(format!("Unknown topic config name: {name}")))
}

impl Definition {
    /// INVALID_CONFIG, naming the key, unless `value` may be set. Values are trimmed first, as Kafka does.
    pub fn validate(&self, value: &str) -> Result<(), ApiError> {
        let refused = |why: &str| {
            Err(invalid(format!(
                "Invalid value {value} for configuration {}: {why}",
                self.name
            )))
        };
        let trimmed = value.trim();
        let number = match self.kind {
            Kind::Boolean
                if !trimmed.eq_ignore_ascii_case("true") && !trimmed.eq_ignore_ascii_case("false") =>
            {
                return refused("Expected value to be either true or false");
            }
            Kind::Boolean | Kind::String | Kind::List => None,
            Kind::Int => match trimmed.parse::<i32>() {
                Ok(number) => Some(i64::from(number)),
                Err(_) => return refused("Not a number of type INT"),
            },
            Kind::Long => match trimmed.parse::<i64>() {
                Ok(number) => Some(number),
                Err(_) => return refused("Not a number of type LONG"),
            },
            Kind::Double => match trimmed.parse::<f64>() {
                Ok(number) if matches!(self.rule, Rule::Fraction) && !(0.0..=1.0).contains(&number) => {
                    return refused("Value must be between 0 and 1");
                }
                Ok(_) => None,
                Err(_) => return refused("Not a number of type DOUBLE"),
            },
        };
        match (self.rule, number) {
            (Rule::AtLeast(least), Some(number)) if number < least => {
                refused(&format!("Value must be at least {least}"))
            }
            (Rule::OneOf(values), _) if !values.contains(&trimmed) => {
                refused(&format!("String must be one of: {}", values.join(", ")))
            }
            (Rule::Only(only, why), _) if !self.is_only(only, trimmed) => {
                refused(&format!("only {only} is supported: {why}"))
            }
            _ => Ok(()),
        }
    }

    fn is_only(&self, only: &str, value: &str) -> bool {
        match self.kind {
            Kind::Boolean => value.eq_ignore_ascii_case(only),
            Kind::List => value.split(',').all(|item| item.trim() == only),
            _ => value == only,
        }
    }
}

/// What is to become of one key (IncrementalAlterConfigs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Set it.
    Set(String),
    /// Back to the default.
    Delete,
    /// Add items to a list that are not in it.
    Append(String),
    /// Take items out of a list.
    Subtract(String),
}

/// Checks the configurations a topic is created with and puts them in order. Of equal keys the last wins.
pub fn validate_new(configs: Vec<(String, Option<String>)>) -> Result<Vec<Config>, ApiError> {
    let mut set = BTreeMap::new();
    for (name, value) in configs {
        let Some(value) = value else {
            return Err(invalid(format!(
                "Null value not supported for topic configs: {name}"
            )));
        };
        known(&name)?.validate(&value)?;
        set.insert(name, value.trim().to_owned());
    }
    in_order(set)
}

/// The configurations of a topic after `ops`.
pub fn alter(current: &[Config], ops: &[(String, Op)]) -> Result<Vec<Config>, ApiError> {
    let mut set: BTreeMap<_, _> = current
        .iter()
        .map(|c| (c.name.clone(), c.value.clone()))
        .collect();
    for (name, op) in ops {
        if *op == Op::Delete {
            // Of a key that nobody knows there is nothing to take away; Kafka does not mind it.
            set.remove(name);
            continue;
        }
        let definition = known(name)?;
        let value = match op {
            Op::Set(value) => value.trim().to_owned(),
            Op::Delete => continue,
            Op::Append(_) if definition.kind != Kind::List => {
                return Err(invalid(format!(
                    "Can't APPEND to key {name} because its type is not LIST."
                )));
            }
            Op::Subtract(_) if definition.kind != Kind::List => {
                return Err(invalid(format!(
                    "Can't SUBTRACT from key {name} because its type is not LIST."
                )));
            }
            Op::Append(items) => {
                let mut list = items_of(set.get(name).map_or(definition.default, String::as_str));
                for item in items_of(items) {
                    if !list.contains(&item) {
                        list.push(item);
                    }
                }
                list.join(",")
            }
            Op::Subtract(items) => {
                let gone = items_of(items);
                let mut list = items_of(set.get(name).map_or(definition.default, String::as_str));
                list.retain(|item| !gone.contains(item));
                list.join(",")
            }
        };
        definition.validate(&value)?;
        set.insert(name.clone(), value);
    }
    in_order(set)
}

fn items_of(list: &str) -> Vec<&str> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .collect()
}

/// The configurations as they are kept, bounded: they travel to every node with every picture.
fn in_order(set: BTreeMap<String, String>) -> Result<Vec<Config>, ApiError> {
    if set
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum::<usize>()
        > MAX_BYTES
    {
        return Err(invalid(format!(
            "the configurations of a topic take more than {MAX_BYTES} bytes"
        )));
    }
    Ok(set
        .into_iter()
        .map(|(name, value)| Config { name, value })
        .collect())
}

/// The configurations of a topic that change how it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// Age at which records are discarded, ms; `None`: never.
    pub retention_ms: Option<u64>,
    /// Size per partition beyond which the oldest records are discarded, bytes; `None`: no limit.
    pub retention_bytes: Option<u64>,
    /// Largest batch that is accepted, bytes.
    pub max_message_bytes: u32,
    /// Records carry the time of their commit.
    pub log_append_time: bool,
    /// How far a record may lie in the past under CreateTime, ms.
    pub before_max_ms: u64,
    /// How far a record may lie in the future under CreateTime, ms.
    pub after_max_ms: u64,
}

impl TopicConfig {
    /// As set on `topic`, or the defaults.
    pub fn of(topic: &Topic) -> TopicConfig {
        let text = |name: &str| {
            topic
                .config(name)
                .or(definition(name).map(|d| d.default))
                .unwrap_or_default()
        };
        // Stored values were validated; -1 (and anything negative) means without limit.
        let limit = |name: &str| {
            text(name)
                .parse::<i64>()
                .ok()
                .and_then(|number| u64::try_from(number).ok())
        };
        TopicConfig {
            retention_ms: limit("retention.ms"),
            retention_bytes: limit("retention.bytes"),
            max_message_bytes: text("max.message.bytes").parse().unwrap_or(1_048_588),
            log_append_time: text("message.timestamp.type") == "LogAppendTime",
            before_max_ms: limit("message.timestamp.before.max.ms").unwrap_or(i64::MAX as u64),
            after_max_ms: limit("message.timestamp.after.max.ms").unwrap_or(3_600_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::TopicId;

    fn topic(configs: &[(&str, &str)]) -> Topic {
        let configs = configs
            .iter()
            .map(|(n, v)| Config {
                name: (*n).into(),
                value: (*v).into(),
            })
            .collect();
        Topic {
            id: TopicId::default(),
            name: "t".into(),
            partitions: Vec::new(),
            configs,
        }
    }

    #[test]
    fn every_default_is_valid_and_names_are_in_order() {
        for definition in DEFINITIONS {
            assert_eq!(
                definition.validate(definition.default),
                Ok(()),
                "{}",
                definition.name
            );
        }
        assert!(DEFINITIONS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn a_wrong_value_names_the_key() {
        for (name, value) in [
            ("retention.ms", "-2"),
            ("retention.ms", "soon"),
            ("max.message.bytes", "2147483648"),
            ("message.timestamp.type", "createtime"),
            ("cleanup.policy", "compact"),
            ("cleanup.policy", "compact,delete"),
            ("cleanup.policy", ""),
            ("compression.type", "zstd"),
            ("preallocate", "yes"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("diskless.enable", "false"),
            ("no.such.key", "1"),
        ] {
            let refused = validate_new(vec![(name.into(), Some(value.into()))]).unwrap_err();
            assert_eq!(refused.error, ResponseError::InvalidConfig, "{name}={value}");
            assert!(refused.message.contains(name), "{}", refused.message);
        }
        let refused = validate_new(vec![("retention.ms".into(), None)]).unwrap_err();
        assert!(refused.message.contains("retention.ms"));
    }

    #[test]
    fn set_delete_append_and_subtract() {
        let key = "leader.replication.throttled.replicas";
        let set = |name: &str, op| (name.to_owned(), op);
        let one = alter(
            &[],
            &[
                set("retention.ms", Op::Set(" 5 ".into())),
                set(key, Op::Append("0:1, 0:2".into())),
            ],
        );
        let one = one.unwrap();
        assert_eq!(one[0].value, "0:1,0:2");
        assert_eq!(one[1].value, "5");
        let two = alter(
            &one,
            &[
                set(key, Op::Append("0:2,0:3".into())),
                set("retention.ms", Op::Delete),
            ],
        )
        .unwrap();
        assert_eq!(
            two,
            [Config {
                name: key.into(),
                value: "0:1,0:2,0:3".into()
            }]
        );
        let three = alter(&two, &[set(key, Op::Subtract("0:2".into()))]).unwrap();
        assert_eq!(three[0].value, "0:1,0:3");
        for op in [Op::Append("1".into()), Op::Subtract("1".into())] {
            let refused = alter(&one, &[set("retention.ms", op)]).unwrap_err();
            assert!(refused.message.contains("its type is not LIST"));
        }
        assert_eq!(
            alter(&one, &[set("cleanup.policy", Op::Append("compact".into()))])
                .unwrap_err()
                .error,
            ResponseError::InvalidConfig
        );
    }

    #[test]
    fn configurations_of_a_topic_are_bounded() {
        let key = "leader.replication.throttled.replicas".to_owned();
        let long = "0:1,".repeat(10_000);
        assert!(validate_new(vec![(key.clone(), Some(long.clone()))]).is_err());
        assert!(
            alter(&[], &[(key, Op::Append(long.replace("0:1", "0")))]).is_ok(),
            "of equal items one is kept"
        );
    }

    #[test]
    fn typed_values_fall_back_to_the_defaults() {
        let default = TopicConfig::of(&topic(&[]));
        assert_eq!(default.retention_ms, Some(604_800_000));
        assert_eq!(default.retention_bytes, None);
        assert_eq!(default.max_message_bytes, 1_048_588);
        assert!(!default.log_append_time);
        let set = TopicConfig::of(&topic(&[
            ("retention.ms", "-1"),
            ("message.timestamp.type", "LogAppendTime"),
        ]));
        assert_eq!(set.retention_ms, None);
        assert!(set.log_append_time);
    }
}
