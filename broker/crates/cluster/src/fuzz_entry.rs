//! What a controller and its nodes read that others wrote, for bytes of anybody's. The fuzz targets and the tests with random
//! bytes call the same functions: whatever comes, nothing panics, and what is taken for a value survives being written and read again.

use bytes::Bytes;
use coordinator::replica::{StateError, StateMachine};
use kafka_wire::flex::Decode;
use kafka_wire::fuzz_entry::{again, one_of};
use types::{FeatureLevels, LogOffset};

use crate::entry::{self, Change};
use crate::image::{ImageChanges, ImageRecord, MetadataImage};
use crate::protocol::{
    AllocateProducerIdsRequest, AllocateProducerIdsResponse, DescribeClusterRequest, DescribeClusterResponse,
    ForwardRequest, ForwardResponse, HeartbeatRequest, HeartbeatResponse,
};
use crate::state::ClusterState;

const LEVELS: FeatureLevels = FeatureLevels::SUPPORTED;

/// An entry of the log `cluster`.
pub fn log_entry(input: &[u8]) {
    let input = Bytes::copy_from_slice(input);
    if let Ok(changes) = entry::decode::<Vec<Change>>(input.clone(), LEVELS) {
        let again = entry::decode::<Vec<Change>>(entry::encode(&changes), LEVELS);
        assert_eq!(again.ok(), Some(changes));
        let (mut state, _) = ClusterState::new(LEVELS);
        let applied = state.apply(LogOffset(0), &[input]);
        assert!(matches!(applied, Ok(()) | Err(StateError::Unsupported(_))));
    }
}

/// A snapshot of the cluster's state.
pub fn snapshot(input: &[u8]) {
    let (mut state, metadata) = ClusterState::new(LEVELS);
    if state.restore(LogOffset(1), input.into()).is_err() {
        return;
    }
    let restored = metadata.borrow().clone();
    let (mut other, metadata) = ClusterState::new(LEVELS);
    let again = state
        .snapshot()
        .and_then(|(offset, bytes)| other.restore(offset, bytes.into()));
    assert!(again.is_ok() && restored.topics == metadata.borrow().topics);
}

/// A message of the internal listener; the first byte chooses which.
pub fn rpc(input: &[u8]) {
    const READERS: [fn(Bytes); 8] = [
        again::<AllocateProducerIdsRequest>,
        again::<AllocateProducerIdsResponse>,
        again::<DescribeClusterRequest>,
        again::<DescribeClusterResponse>,
        again::<ForwardRequest>,
        again::<ForwardResponse>,
        again::<HeartbeatRequest>,
        again::<HeartbeatResponse>,
    ];
    one_of(&READERS, input);
}

/// What a controller says of the cluster.
pub fn image(input: &[u8]) {
    let input = Bytes::copy_from_slice(input);
    if let Ok(record) = ImageRecord::from_bytes(input.clone()) {
        let _ = MetadataImage::new(record);
    }
    if let Ok(mut changes) = ImageChanges::from_bytes(input) {
        let image = MetadataImage::new(ImageRecord {
            version: changes.base,
            ..changes.picture.clone()
        });
        changes.topics = u32::try_from(image.record().topics.len()).unwrap_or(0);
        let _ = image.changed(&changes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes among which small numbers are common: lengths and counts that fit.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![4 => 0u8..4, 1 => any::<u8>()], 0..200)
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_log_or_comes_from_a_peer_is_read_or_refused(input in bytes()) {
            log_entry(&input);
            snapshot(&input);
            rpc(&input);
            image(&input);
        }
    }
}
