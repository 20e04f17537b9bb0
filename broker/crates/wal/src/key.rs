use types::NodeId;
use uuid::{Builder, Uuid, Variant, Version};

/// What the keys of all WAL objects start with.
pub const PREFIX: &str = "wal/";

/// Key of a WAL object. The two hex digits in front of the id spread the keys over the partitions that object
/// stores make of key ranges, and over folders on a disk.
pub fn object_key(object: Uuid) -> String {
    format!("{PREFIX}{:02x}/{object}", spread(object))
}

/// The object that a key names; `None` if it is not the key of a WAL object.
pub fn object_id(key: &str) -> Option<Uuid> {
    let (_, id) = key.strip_prefix(PREFIX)?.split_once('/')?;
    let object = Uuid::try_parse(id).ok()?;
    (object_key(object) == key).then_some(object)
}

/// The name of an object that `uploader` is about to write: `random` but for its first four bytes, the node id. So who
/// is told of an object knows who has it in memory, and nothing else need say so. It is a UUID of version 8 (RFC 9562)
/// with 90 random bits; those of the first release are of version 4 and tell nothing.
pub fn name_object(random: Uuid, uploader: NodeId) -> Uuid {
    let mut bytes = *random.as_bytes();
    for (to, from) in bytes.iter_mut().zip(uploader.0.to_be_bytes()) {
        *to = from;
    }
    Builder::from_bytes(bytes)
        .with_variant(Variant::RFC4122)
        .with_version(Version::Custom)
        .into_uuid()
}

/// Who wrote an object, if its name tells.
pub fn uploader(object: Uuid) -> Option<NodeId> {
    let id = object.as_bytes().first_chunk::<4>()?;
    (object.get_version() == Some(Version::Custom)).then_some(NodeId(i32::from_be_bytes(*id)))
}

/// The last byte: random, unlike those that hold the version or the uploader.
fn spread(object: Uuid) -> u8 {
    object.as_bytes().last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_ids_belong_together() {
        let object = Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);
        let key = object_key(object);
        assert_eq!(key, "wal/ef/01234567-89ab-4def-8123-456789abcdef");
        assert_eq!(object_id(&key), Some(object));
    }

    #[test]
    fn a_name_tells_the_uploader_and_nothing_else() {
        let random = [0u128, u128::MAX, 0x0123_4567_89ab_4def_8123_4567_89ab_cdef].map(Uuid::from_u128);
        for random in random {
            for id in [0, 1003, i32::MAX] {
                let object = name_object(random, NodeId(id));
                assert_eq!(uploader(object), Some(NodeId(id)));
                assert_eq!(object_id(&object_key(object)), Some(object));
                // The rest is as random as it was.
                assert_eq!(object.as_bytes()[9..], random.as_bytes()[9..]);
                assert_eq!(object.as_bytes()[4..6], random.as_bytes()[4..6]);
            }
        }
        let first_release = Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);
        assert_eq!(uploader(first_release), None);
    }

    #[test]
    fn foreign_keys_are_not_ours() {
        let foreign = [
            "",
            "wal/",
            "wal/ef",
            "wal/ef/x",
            "wal/00/01234567-89ab-4def-8123-456789abcdef",
            "wal/ef/0123456789ab4def8123456789abcdef",
            "wal/ef/01234567-89AB-4DEF-8123-456789ABCDEF",
            "meta/ef/01234567-89ab-4def-8123-456789abcdef",
        ];
        for key in foreign {
            assert_eq!(object_id(key), None, "{key}");
        }
    }
}
