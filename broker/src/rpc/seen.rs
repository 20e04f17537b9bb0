use std::sync::Arc;

use coordinator::protocol::{FindBatchesRequest, FindBatchesResponse};
use parking_lot::Mutex;
use types::{FastMap, TopicPartition};

/// The largest high watermark that this node has seen of each partition. A follower that is behind one of them is not
/// believed, so that no client of this node sees a partition go backwards. The fetch windows know high watermarks, too, but
/// forget them when the leader is silent, which is when followers are asked.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<FastMap<TopicPartition, i64>>>);

impl Seen {
    /// Takes note of a high watermark; below 0 there is none.
    pub fn raise(&self, partition: TopicPartition, high_watermark: i64) {
        if high_watermark >= 0 {
            let mut seen = self.0.lock();
            let seen = seen.entry(partition).or_insert(high_watermark);
            *seen = high_watermark.max(*seen);
        }
    }

    /// The partition is gone.
    pub fn forget(&self, partition: &TopicPartition) {
        self.0.lock().remove(partition);
    }

    /// Whether a follower's answer is complete and behind nothing that was seen. Its errors do not count: a partition
    /// that it does not know, or an offset above its end, may be there already.
    pub fn agrees(&self, request: &FindBatchesRequest, answer: &FindBatchesResponse) -> bool {
        let seen = self.0.lock();
        let mut pairs = request.partitions.iter().zip(&answer.partitions);
        request.partitions.len() == answer.partitions.len()
            && pairs.all(|(wanted, found)| {
                let known = seen.get(&wanted.partition).copied().unwrap_or(0);
                found.error_code == 0 && found.high_watermark >= known
            })
    }
}

#[cfg(test)]
mod tests {
    use coordinator::protocol::{FindBatchesPartition, FindBatchesResult};
    use types::{LogOffset, ShardId, TopicId};

    use super::*;

    #[test]
    fn a_follower_that_is_behind_is_not_believed() {
        let partition = |partition| TopicPartition {
            topic: TopicId(uuid::Uuid::from_u128(1)),
            partition,
        };
        let request = FindBatchesRequest {
            shard: ShardId(0),
            partitions: [0, 1]
                .map(|index| FindBatchesPartition {
                    partition: partition(index),
                    offset: 0,
                    max_bytes: 1,
                })
                .to_vec(),
            max_bytes: 1,
        };
        let answer = |high_watermarks: &[i64], error_code| FindBatchesResponse {
            error_code: 0,
            applied: LogOffset(1),
            partitions: high_watermarks
                .iter()
                .map(|high_watermark| FindBatchesResult {
                    error_code,
                    log_start_offset: 0,
                    high_watermark: *high_watermark,
                    batches: Vec::new(),
                })
                .collect(),
        };
        let seen = Seen::default();
        assert!(seen.agrees(&request, &answer(&[5, 5], 0)), "nothing was seen yet");
        seen.raise(partition(1), 7);
        seen.raise(partition(1), 6);
        seen.raise(partition(1), -1);
        assert!(!seen.agrees(&request, &answer(&[5, 6], 0)));
        assert!(seen.agrees(&request, &answer(&[5, 7], 0)));
        assert!(
            !seen.agrees(&request, &answer(&[5, 7], 1)),
            "out of range by its own end only"
        );
        assert!(!seen.agrees(&request, &answer(&[5], 0)));
        seen.forget(&partition(1));
        assert!(seen.agrees(&request, &answer(&[5, 0], 0)));
    }
}
