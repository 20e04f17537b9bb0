//! The definitions are fit to be installed. That the generated files are current is a test of `cargo xtask generate`.
#![allow(clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

use serde_json::Value;

/// The API server drops what says nothing; a tool that compares would then find a difference for ever.
#[test]
fn definitions_say_nothing_empty() {
    fn check(value: &Value, path: &str) {
        match value {
            Value::Object(fields) => {
                assert!(
                    !fields.is_empty() || path.ends_with("subresources.status"),
                    "{path} is an empty object"
                );
                for (name, field) in fields {
                    let path = format!("{path}.{name}");
                    // The value of a default may be anything; the others are flags that are off by themselves.
                    assert!(
                        field != &Value::Bool(false) || name == "default",
                        "{path} is false"
                    );
                    assert!(!field.is_null(), "{path} is null");
                    check(field, &path);
                }
            }
            Value::Array(values) => {
                assert!(!values.is_empty(), "{path} is an empty list");
                values.iter().for_each(|value| check(value, &format!("{path}[]")));
            }
            _ => {}
        }
    }
    for definition in crds::all().expect("definitions") {
        let mut definition = serde_json::to_value(definition).expect("json");
        // The one version is the one that is stored and served.
        let versions = definition
            .pointer_mut("/spec/versions")
            .and_then(Value::as_array_mut)
            .expect("versions");
        assert_eq!(versions.len(), 1);
        check(&definition, "");
    }
}

/// Every field is described, every list, map and string that a rule reads is bounded by its schema.
#[test]
fn every_field_is_described() {
    fn check(schema: &Value, path: &str) {
        for (name, field) in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let path = format!("{path}.{name}");
            assert!(
                field.get("description").is_some_and(Value::is_string),
                "{path} has no description"
            );
            check(field, &path);
            if let Some(items) = field.get("items") {
                assert!(field.get("maxItems").is_some(), "{path} has no maxItems");
                assert!(
                    field.get("x-kubernetes-list-type").is_some(),
                    "{path} has no list type"
                );
                check(items, &format!("{path}[]"));
            }
        }
    }
    for definition in crds::all().expect("definitions") {
        let definition = serde_json::to_value(definition).expect("json");
        let schema = definition
            .pointer("/spec/versions/0/schema/openAPIV3Schema")
            .expect("a schema");
        for part in ["spec", "status"] {
            check(
                schema.pointer(&format!("/properties/{part}")).expect("a part"),
                part,
            );
        }
    }
}

/// Topic settings reach the admin protocol under Kafka's names and in Kafka's words.
#[test]
fn topic_settings_are_kafkas() {
    let json = serde_json::json!({
        "cleanup.policy": "delete", "compression.type": "producer", "max.message.bytes": 1048588,
        "message.timestamp.type": "LogAppendTime", "retention.bytes": -1, "retention.ms": 604_800_000
    });
    let config: crds::TopicConfig = serde_json::from_value(json.clone()).expect("a config");
    let entries = config.entries();
    assert_eq!(entries.len(), json.as_object().expect("an object").len());
    for (name, value) in json.as_object().expect("an object") {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        assert_eq!(entries.get(name.as_str()), Some(&text), "{name}");
    }
    assert!(crds::TopicConfig::default().entries().is_empty());
}
