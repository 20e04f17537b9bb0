//! Kafka's rules for topic names.

use kafka_wire::ResponseError;

use crate::ApiError;

/// Longest topic name, in bytes.
const MAX_LENGTH: usize = 249;

/// INVALID_TOPIC_EXCEPTION unless `name` may be the name of a topic.
pub(crate) fn validate(name: &str) -> Result<(), ApiError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let why = match name {
        "" => "the empty string is not allowed".to_owned(),
        "." | ".." => "'.' or '..' is not allowed".to_owned(),
        long if long.len() > MAX_LENGTH => {
            format!(
                "its length of {} is longer than the max allowed length {MAX_LENGTH}",
                long.len()
            )
        }
        other if !other.bytes().all(legal) => {
            format!(
                "'{other}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
            )
        }
        _ => return Ok(()),
    };
    Err(ApiError::new(
        ResponseError::InvalidTopicException,
        format!("Topic name is invalid: {why}"),
    ))
}

/// Metric names cannot tell `.` from `_`, so Kafka refuses topics that differ only in that. Returns the existing
/// name that `name` collides with.
pub(crate) fn collision<'a>(name: &str, existing: impl IntoIterator<Item = &'a String>) -> Option<&'a str> {
    if !name.contains(['.', '_']) {
        return None;
    }
    let same = |a: u8, b: u8| a == b || (matches!(a, b'.' | b'_') && matches!(b, b'.' | b'_'));
    let collides = |other: &str| {
        other.len() == name.len() && other.bytes().zip(name.bytes()).all(|(a, b)| same(a, b)) && other != name
    };
    existing
        .into_iter()
        .map(String::as_str)
        .find(|other| collides(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_kafkas_rules() {
        for good in ["a", "A.b_c-9", "__consumer_offsets", "...", &"x".repeat(249)] {
            assert_eq!(validate(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "é", "a\n", &"x".repeat(250)] {
            let refused = validate(bad).unwrap_err();
            assert_eq!(refused.error, ResponseError::InvalidTopicException, "{bad}");
        }
    }

    #[test]
    fn dot_and_underscore_collide() {
        let existing = ["a.b".to_owned(), "plain".to_owned()];
        assert_eq!(collision("a_b", &existing), Some("a.b"));
        assert_eq!(
            collision("a.b", &existing),
            None,
            "the same name is not a collision"
        );
        assert_eq!(collision("a.bc", &existing), None);
    }
}
