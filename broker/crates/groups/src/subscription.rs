//! The one thing of the members' own protocol that the coordinator looks at: which topics a consumer reads.

use bytes::{Buf, Bytes};

/// Whether a consumer that sent `metadata` reads `topic`, by `ConsumerProtocolSubscription` (version, then names of
/// topics). What cannot be read may mean any topic.
pub(crate) fn names(mut metadata: Bytes, topic: &str) -> bool {
    read(&mut metadata, topic).unwrap_or(true)
}

fn read(metadata: &mut Bytes, topic: &str) -> Option<bool> {
    metadata.try_get_i16().ok()?;
    let mut found = false;
    for _ in 0..metadata.try_get_i32().ok()? {
        let len = usize::try_from(metadata.try_get_i16().ok()?).ok()?;
        if len > metadata.len() {
            return None;
        }
        found |= *metadata.split_to(len) == *topic.as_bytes();
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_found_and_nonsense_means_any() {
        let metadata = Bytes::from_static(b"\0\x01\0\0\0\x02\0\x01a\0\x02bc\xff\xff\xff\xff");
        for (topic, named) in [("a", true), ("bc", true), ("b", false)] {
            assert_eq!(names(metadata.clone(), topic), named, "{topic}");
        }
        for broken in [&b""[..], b"\0\x01\x7f\xff\xff\xff", b"\0\x01\0\0\0\x01\0\x09a"] {
            assert!(names(Bytes::from_static(broken), "a"));
        }
    }
}
