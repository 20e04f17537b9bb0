//! What the engine `object` stores. All numbers are big-endian.
//!
//! ```text
//!  slot                                        manifest
//!   0  8  magic "DKLSLOT\n"                      0  8  magic "DKLMNFT\n"
//!   8  2  format version (1)                     8  2  format version (1)
//!  10  4  CRC32C of all that follows            10  4  CRC32C of all that follows
//!  14  8  epoch                                 14  8  sequence number
//!  22 16  writer nonce                          22  8  epoch
//!  38  8  offset (= sequence number)            30 16  writer nonce
//!  46 32  SHA-256 of the previous slot          46  8  log start
//!  78  4  number of entries                     54  4  owner: node id
//!  82  4  length of each entry ...              58 16  owner: incarnation
//!      .  entries ...                           74  s  owner: address
//!                                                .  1  1 if there is a snapshot, else 0; then:
//!                                                .  8  offset, 8 size, 32 SHA-256, 32 hash of slot offset-1
//!                                                .  s  key
//!                                               (s = 2 bytes of length, then UTF-8)
//! ```
//!
//! A slot with no entries is a fencing slot. The previous slot of slot 0 is, by definition, the name of the log.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::{Epoch, LogError, LogOffset, Owner, Slot, SnapshotRef};

/// SHA-256 of a stored slot.
pub(crate) type Hash = [u8; 32];

/// The largest slot that is written, and the most that is ever read of one.
pub(crate) const MAX_SLOT: usize = 16 * 1024 * 1024;
/// The largest entry that fits into a slot of its own.
pub(crate) const MAX_ENTRY: usize = MAX_SLOT - SLOT_HEADER - 4;
/// The most that is written and read of a manifest.
pub(crate) const MAX_MANIFEST: usize = 16 * 1024;

pub(crate) const SLOT_MAGIC: &[u8; 8] = b"DKLSLOT\n";
pub(crate) const MANIFEST_MAGIC: &[u8; 8] = b"DKLMNFT\n";
const VERSION: u16 = 1;
/// Magic, version and checksum.
const PREAMBLE: usize = 14;
const SLOT_HEADER: usize = 82;

/// A slot as it is stored.
#[derive(Debug)]
pub(crate) struct StoredSlot {
    pub(crate) nonce: Uuid,
    pub(crate) previous: Hash,
    pub(crate) slot: Slot,
}

/// Who leads the log and what is left of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) sequence: u64,
    pub(crate) epoch: Epoch,
    pub(crate) nonce: Uuid,
    pub(crate) log_start: LogOffset,
    pub(crate) owner: Owner,
    pub(crate) snapshot: Option<SnapshotRef>,
}

/// The hash that slot 0 of a log names as its previous one.
pub(crate) fn genesis(name: &str) -> Hash {
    Sha256::digest(name.as_bytes()).into()
}

/// The hash of a slot.
pub(crate) fn hash(body: &[Bytes]) -> Hash {
    let mut sha = Sha256::new();
    for slice in body {
        sha.update(slice);
    }
    sha.finalize().into()
}

pub(crate) fn crc(slices: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for slice in slices {
        digest.update(slice);
    }
    u32::try_from(digest.finalize()).unwrap_or(0)
}

fn u32_len(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl StoredSlot {
    /// The slot's bytes: a header, then the entries as they are. [`LogError::TooLarge`] if they do not fit.
    pub(crate) fn encode(&self) -> Result<Vec<Bytes>, LogError> {
        let entries = &self.slot.entries;
        let index = entries.len().saturating_mul(4);
        let size = entries
            .iter()
            .fold(SLOT_HEADER.saturating_add(index), |sum, entry| {
                sum.saturating_add(entry.len())
            });
        if size > MAX_SLOT {
            return Err(LogError::TooLarge {
                size,
                limit: MAX_SLOT,
            });
        }
        let mut rest = BytesMut::with_capacity(SLOT_HEADER - PREAMBLE + index);
        rest.put_u64(self.slot.epoch.0);
        rest.put_slice(self.nonce.as_bytes());
        rest.put_u64(self.slot.offset.0);
        rest.put_slice(&self.previous);
        rest.put_u32(u32_len(entries.len()));
        entries
            .iter()
            .for_each(|entry| rest.put_u32(u32_len(entry.len())));
        let mut checked: Vec<&[u8]> = vec![&rest];
        checked.extend(entries.iter().map(|entry| &**entry));
        let mut header = preamble(SLOT_MAGIC, crc(&checked));
        header.unsplit(rest);
        let mut body = Vec::with_capacity(1 + entries.len());
        body.push(header.freeze());
        body.extend(entries.iter().cloned());
        Ok(body)
    }

    /// Reads the slot that should be at `offset`. `key` names the object in errors.
    pub(crate) fn decode(key: &str, offset: LogOffset, body: &Bytes) -> Result<StoredSlot, LogError> {
        let mut input = open(key, body, SLOT_MAGIC, MAX_SLOT, "a metadata log slot")?;
        let short = || corrupt(key, "it ends too early");
        let epoch = Epoch(input.try_get_u64().map_err(|_| short())?);
        let nonce = Uuid::from_bytes(take(&mut input).ok_or_else(short)?);
        let stored = LogOffset(input.try_get_u64().map_err(|_| short())?);
        let previous = take(&mut input).ok_or_else(short)?;
        let count = input.try_get_u32().map_err(|_| short())? as usize;
        if stored != offset {
            return Err(corrupt(key, &format!("it is the slot of offset {stored}")));
        }
        if input.len() / 4 < count {
            return Err(short());
        }
        let mut index = input.split_to(count * 4);
        let mut entries = Vec::with_capacity(count);
        while let Ok(length) = index.try_get_u32() {
            if input.len() < length as usize {
                return Err(short());
            }
            entries.push(input.split_to(length as usize));
        }
        if !input.is_empty() {
            return Err(corrupt(key, "bytes follow its last entry"));
        }
        Ok(StoredSlot {
            nonce,
            previous,
            slot: Slot {
                offset,
                epoch,
                entries,
            },
        })
    }
}

impl Manifest {
    /// What the leader of this term writes at `offset`, behind the slot with the hash `previous`.
    pub(crate) fn slot(&self, previous: Hash, offset: LogOffset, entries: Vec<Bytes>) -> StoredSlot {
        StoredSlot {
            nonce: self.nonce,
            previous,
            slot: Slot {
                offset,
                epoch: self.epoch,
                entries,
            },
        }
    }

    /// The first manifest of the term after `newest`.
    pub(crate) fn next_term(newest: Option<Manifest>, owner: &Owner, nonce: Uuid) -> Manifest {
        match newest {
            None => Manifest {
                sequence: 0,
                epoch: Epoch(1),
                nonce,
                log_start: LogOffset(0),
                owner: owner.clone(),
                snapshot: None,
            },
            Some(newest) => Manifest {
                sequence: newest.sequence + 1,
                epoch: Epoch(newest.epoch.0 + u64::from(!env::mutation("reuse-epoch"))),
                nonce,
                owner: owner.clone(),
                ..newest
            },
        }
    }

    /// The next manifest of the same term, in a log that ends at `tail`: it starts from `snapshot`, and at `log_start`.
    pub(crate) fn with_snapshot(
        &self,
        snapshot: SnapshotRef,
        log_start: LogOffset,
        tail: LogOffset,
    ) -> Result<Manifest, LogError> {
        let installed = self.snapshot.as_ref().map_or(LogOffset(0), |old| old.offset);
        if snapshot.offset < installed || snapshot.offset > tail || log_start > snapshot.offset {
            return Err(LogError::Invalid(format!(
                "a snapshot of offset {} with log start {log_start} does not fit: the installed one is of {installed}, \
                 the log ends at {tail}",
                snapshot.offset
            )));
        }
        Ok(Manifest {
            sequence: self.sequence + 1,
            log_start: log_start.max(self.log_start),
            snapshot: Some(snapshot),
            ..self.clone()
        })
    }

    /// The manifest's bytes.
    pub(crate) fn encode(&self) -> Vec<Bytes> {
        let mut rest = BytesMut::new();
        rest.put_u64(self.sequence);
        rest.put_u64(self.epoch.0);
        rest.put_slice(self.nonce.as_bytes());
        rest.put_u64(self.log_start.0);
        rest.put_i32(self.owner.node_id);
        rest.put_slice(self.owner.incarnation.as_bytes());
        put_string(&mut rest, &self.owner.address);
        rest.put_u8(u8::from(self.snapshot.is_some()));
        if let Some(snapshot) = &self.snapshot {
            rest.put_u64(snapshot.offset.0);
            rest.put_u64(snapshot.size);
            rest.put_slice(&snapshot.sha256);
            rest.put_slice(&snapshot.chain);
            put_string(&mut rest, &snapshot.key);
        }
        let mut body = preamble(MANIFEST_MAGIC, crc(&[&rest]));
        body.unsplit(rest);
        vec![body.freeze()]
    }

    /// Reads the manifest that should have this `sequence`. `key` names the object in errors.
    pub(crate) fn decode(key: &str, sequence: u64, body: &Bytes) -> Result<Manifest, LogError> {
        let mut input = open(key, body, MANIFEST_MAGIC, MAX_MANIFEST, "a metadata log manifest")?;
        let manifest = decode_manifest(&mut input).ok_or_else(|| corrupt(key, "it ends too early"))?;
        if !input.is_empty() {
            return Err(corrupt(key, "bytes follow its end"));
        }
        if manifest.sequence != sequence {
            return Err(corrupt(key, &format!("it is manifest {}", manifest.sequence)));
        }
        Ok(manifest)
    }
}

fn decode_manifest(input: &mut Bytes) -> Option<Manifest> {
    let sequence = input.try_get_u64().ok()?;
    let epoch = Epoch(input.try_get_u64().ok()?);
    let nonce = Uuid::from_bytes(take(input)?);
    let log_start = LogOffset(input.try_get_u64().ok()?);
    let node_id = input.try_get_i32().ok()?;
    let incarnation = Uuid::from_bytes(take(input)?);
    let owner = Owner {
        node_id,
        incarnation,
        address: get_string(input)?,
    };
    let snapshot = match input.try_get_u8().ok()? {
        0 => None,
        _ => Some(SnapshotRef {
            offset: LogOffset(input.try_get_u64().ok()?),
            size: input.try_get_u64().ok()?,
            sha256: take(input)?,
            chain: take(input)?,
            key: get_string(input)?,
        }),
    };
    Some(Manifest {
        sequence,
        epoch,
        nonce,
        log_start,
        owner,
        snapshot,
    })
}

pub(crate) fn preamble(magic: &[u8; 8], crc: u32) -> BytesMut {
    let mut header = BytesMut::with_capacity(SLOT_HEADER);
    header.put_slice(magic);
    header.put_u16(VERSION);
    header.put_u32(crc);
    header
}

/// Checks what an object begins with and its checksum, and returns the rest.
fn open(key: &str, body: &Bytes, magic: &[u8; 8], limit: usize, kind: &str) -> Result<Bytes, LogError> {
    let mut input = body.clone();
    if input.len() > limit || take(&mut input) != Some(*magic) {
        return Err(corrupt(
            key,
            &format!("a foreign object is in the place of {kind}"),
        ));
    }
    let version = input
        .try_get_u16()
        .map_err(|_| corrupt(key, "it ends too early"))?;
    if version != VERSION {
        return Err(corrupt(
            key,
            &format!("its format version {version} is not known to this release"),
        ));
    }
    let stored = input
        .try_get_u32()
        .map_err(|_| corrupt(key, "it ends too early"))?;
    if stored != crc(&[&input]) {
        return Err(corrupt(key, "its checksum does not match its bytes"));
    }
    Ok(input)
}

/// An error about the object `key`.
pub(crate) fn corrupt(key: &str, what: &str) -> LogError {
    LogError::Corrupt(format!("{key}: {what}"))
}

fn take<const N: usize>(input: &mut Bytes) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    input.try_copy_to_slice(&mut bytes).ok().map(|()| bytes)
}

fn put_string(output: &mut BytesMut, text: &str) {
    // Addresses and keys are far shorter; a longer one would be cut, never misread.
    let bytes = text.as_bytes();
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    output.put_u16(length);
    output.put_slice(bytes.get(..usize::from(length)).unwrap_or_default());
}

fn get_string(input: &mut Bytes) -> Option<String> {
    let length = usize::from(input.try_get_u16().ok()?);
    if input.len() < length {
        return None;
    }
    String::from_utf8(input.split_to(length).to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(entries: &[&'static [u8]]) -> StoredSlot {
        StoredSlot {
            nonce: Uuid::from_u128(7),
            previous: genesis("log"),
            slot: Slot {
                offset: LogOffset(3),
                epoch: Epoch(9),
                entries: entries.iter().map(|entry| Bytes::from_static(entry)).collect(),
            },
        }
    }

    fn joined(body: &[Bytes]) -> Bytes {
        body.concat().into()
    }

    fn manifest() -> Manifest {
        let snapshot = SnapshotRef {
            offset: LogOffset(40),
            key: "meta/x/snapshot/40".to_owned(),
            size: 12,
            sha256: [1; 32],
            chain: [2; 32],
        };
        let owner = Owner {
            node_id: 4,
            incarnation: Uuid::from_u128(5),
            address: "host:9190".to_owned(),
        };
        Manifest {
            sequence: 6,
            epoch: Epoch(7),
            nonce: Uuid::from_u128(8),
            log_start: LogOffset(30),
            owner,
            snapshot: Some(snapshot),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let cases: [&[&'static [u8]]; 3] = [&[], &[b"one"], &[b"", b"two", b""]];
        for entries in cases {
            let body = joined(&slot(entries).encode().unwrap());
            let read = StoredSlot::decode("k", LogOffset(3), &body).unwrap();
            assert_eq!(read.slot, slot(entries).slot);
            assert_eq!((read.nonce, read.previous), (Uuid::from_u128(7), genesis("log")));
        }
        for manifest in [
            manifest(),
            Manifest {
                snapshot: None,
                ..manifest()
            },
        ] {
            assert_eq!(
                Manifest::decode("k", 6, &joined(&manifest.encode())).unwrap(),
                manifest
            );
        }
    }

    /// A reader must understand what any earlier release wrote: this is version 1, byte for byte.
    #[test]
    fn version_1_does_not_change() {
        let text = |body: &[Bytes]| {
            joined(body)
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<String>()
        };
        let slot = text(&slot(&[b"ab", b"c"]).encode().unwrap());
        assert!(slot.starts_with("444b4c534c4f540a0001"), "{slot}");
        assert!(slot.ends_with("000000020000000200000001616263"), "{slot}");
        assert_eq!(slot.len(), 2 * (SLOT_HEADER + 8 + 3));
        let manifest = text(&manifest().encode());
        assert!(manifest.starts_with("444b4c4d4e46540a0001"), "{manifest}");
        assert_eq!(manifest.len(), 2 * (74 + 2 + 9 + 1 + 80 + 2 + 18));
    }

    #[test]
    fn any_damage_is_found_and_names_the_object() {
        let slot = joined(&slot(&[b"entry", b"other"]).encode().unwrap());
        let manifest = joined(&manifest().encode());
        let decode_slot = |body: &Bytes| StoredSlot::decode("the/key", LogOffset(3), body).map(|_| ());
        let decode_manifest = |body: &Bytes| Manifest::decode("the/key", 6, body).map(|_| ());
        type Decode<'a> = &'a dyn Fn(&Bytes) -> Result<(), LogError>;
        let decoders: [(&Bytes, Decode<'_>); 2] = [(&slot, &decode_slot), (&manifest, &decode_manifest)];
        for (body, decode) in decoders {
            for at in 0..body.len() {
                let mut damaged = body.to_vec();
                damaged[at] ^= 0x10;
                for damaged in [Bytes::from(damaged), body.slice(..at)] {
                    let error = decode(&damaged).unwrap_err();
                    assert!(
                        matches!(&error, LogError::Corrupt(text) if text.contains("the/key")),
                        "{error}"
                    );
                }
            }
            let longer = Bytes::from([&body[..], b"x"].concat());
            assert!(decode(&longer).is_err());
        }
        let error = StoredSlot::decode("k", LogOffset(4), &slot)
            .unwrap_err()
            .to_string();
        assert!(error.contains("offset 3"), "{error}");
        let error = decode_slot(&Bytes::from_static(b"some file of somebody else"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("foreign object"), "{error}");
    }

    /// Lengths that lie, with a checksum that is right: refused before anything is allocated for them.
    #[test]
    fn hostile_counts_cost_nothing() {
        let mut rest = joined(&slot(&[]).encode().unwrap()).to_vec().split_off(PREAMBLE);
        let at = rest.len() - 4;
        rest[at..].copy_from_slice(&u32::MAX.to_be_bytes());
        let mut body = preamble(SLOT_MAGIC, crc(&[&rest]));
        body.put_slice(&rest);
        assert!(StoredSlot::decode("k", LogOffset(3), &body.freeze()).is_err());
    }

    #[test]
    fn slots_that_are_too_large_are_not_written() {
        static LARGE: [u8; MAX_SLOT] = [0; MAX_SLOT];
        let refused = slot(&[&LARGE]).encode().unwrap_err();
        let size = MAX_SLOT + SLOT_HEADER + 4;
        assert_eq!(
            refused,
            LogError::TooLarge {
                size,
                limit: MAX_SLOT
            }
        );
        assert!(slot(&[&LARGE[..MAX_ENTRY + 1]]).encode().is_err());
        assert!(slot(&[&LARGE[..MAX_ENTRY]]).encode().is_ok());
    }
}
