//! What to change so that a topic becomes what its object says. Pure.

use std::collections::BTreeMap;

use super::validate::ValidatedTopic;
use crate::admin::Topic;

/// One change of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Create it.
    Create,
    /// Raise its partitions to this number.
    Grow(i32),
    /// Set (`Some`) or reset (`None`) configs.
    Alter(BTreeMap<String, Option<String>>),
}

/// The changes, in order.
///
/// # Errors
/// The topic cannot become what the object says; why, in words.
pub fn plan(topic: &ValidatedTopic, actual: Option<&Topic>) -> Result<Vec<Change>, String> {
    let Some(actual) = actual else {
        return Ok(vec![Change::Create]);
    };
    if actual.partitions > topic.partitions {
        return Err(format!(
            "topic {} has {} partitions already and spec.partitions asks for {}; partitions cannot be taken away, so \
             raise spec.partitions to {} or more",
            topic.name, actual.partitions, topic.partitions, actual.partitions
        ));
    }
    let mut changes = Vec::new();
    if actual.partitions < topic.partitions {
        changes.push(Change::Grow(topic.partitions));
    }
    let set = topic
        .configs
        .iter()
        .filter(|(key, value)| actual.configs.get(*key) != Some(value));
    let set = set.map(|(key, value)| (key.clone(), Some(value.clone())));
    let reset = actual
        .configs
        .keys()
        .filter(|key| !topic.configs.contains_key(*key));
    let altered: BTreeMap<_, _> = set.chain(reset.map(|key| (key.clone(), None))).collect();
    if !altered.is_empty() {
        changes.push(Change::Alter(altered));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn wanted(partitions: i32, entries: &[(&str, &str)]) -> ValidatedTopic {
        ValidatedTopic {
            namespace: "ns".into(),
            cluster: "demo".into(),
            name: "orders".into(),
            partitions,
            configs: configs(entries),
            delete: false,
        }
    }

    fn actual(partitions: i32, entries: &[(&str, &str)]) -> Topic {
        Topic {
            id: Default::default(),
            partitions,
            configs: configs(entries),
        }
    }

    #[test]
    fn a_missing_topic_is_created() {
        assert_eq!(plan(&wanted(3, &[]), None), Ok(vec![Change::Create]));
    }

    #[test]
    fn a_topic_as_wanted_needs_nothing() {
        let config = [("retention.ms", "1000")];
        assert_eq!(plan(&wanted(3, &config), Some(&actual(3, &config))), Ok(vec![]));
    }

    #[test]
    fn partitions_grow_and_never_shrink() {
        assert_eq!(
            plan(&wanted(6, &[]), Some(&actual(3, &[]))),
            Ok(vec![Change::Grow(6)])
        );
        let refusal = plan(&wanted(3, &[]), Some(&actual(6, &[]))).unwrap_err();
        assert!(refusal.contains("orders has 6 partitions"), "{refusal}");
    }

    #[test]
    fn configs_are_set_changed_and_reset() {
        let wanted = wanted(1, &[("retention.ms", "5"), ("max.message.bytes", "9")]);
        let actual = actual(1, &[("retention.ms", "7"), ("retention.bytes", "8")]);
        let altered = BTreeMap::from([
            ("max.message.bytes".to_owned(), Some("9".to_owned())),
            ("retention.bytes".to_owned(), None),
            ("retention.ms".to_owned(), Some("5".to_owned())),
        ]);
        assert_eq!(plan(&wanted, Some(&actual)), Ok(vec![Change::Alter(altered)]));
    }
}
