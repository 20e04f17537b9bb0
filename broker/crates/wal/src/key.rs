use uuid::Uuid;

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

/// The last byte: random in version 4, unlike those that hold the version.
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
