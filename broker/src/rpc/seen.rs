use std::sync::Arc;

use coordinator::protocol::{FindBatchesRequest, FindBatchesResponse};
use parking_lot::Mutex;
use types::{FastMap, TopicPartition};

/// The largest high watermark that this node has seen of each partition. Who is behind one of them is not
/// believed, so that no client of this node sees a partition go backwards. The fetch windows know high watermarks, too, but
/// forget them when the leader is silent, which is when followers are asked.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<FastMap<TopicPartition, i64>>>);

impl Seen {
    /// Takes note of a high watermark, below 0 there is none, and returns the largest of the partition.
    pub fn raise(&self, partition: TopicPartition, high_watermark: i64) -> i64 {
        if high_watermark < 0 {
            return high_watermark;
        }
        let mut seen = self.0.lock();
        let seen = seen.entry(partition).or_insert(high_watermark);
        *seen = high_watermark.max(*seen);
        *seen
    }

    /// The partition is gone.
    pub fn forget(&self, partition: &TopicPartition) {
        self.0.lock().remove(partition);
    }

    /// Whether an answer shows a partition as it was before what was seen of it: it comes from a node that is behind, be it a leader
    /// that does not know yet that it was deposed.
    pub fn is_behind(&self, request: &FindBatchesRequest, answer: &FindBatchesResponse) -> bool {
        let seen = self.0.lock();
        let mut pairs = request.partitions.iter().zip(&answer.partitions);
        pairs.any(|(wanted, found)| {
            let known = seen.get(&wanted.partition).copied().unwrap_or(0);
            found.high_watermark >= 0 && found.high_watermark < known
        })
    }

    /// Whether a follower's answer is complete and behind nothing that was seen. Its errors do not count: a partition
    /// that it does not know, or an offset above its end, may be there already.
    pub fn agrees(&self, request: &FindBatchesRequest, answer: &FindBatchesResponse) -> bool {
        request.partitions.len() == answer.partitions.len()
            && answer.partitions.iter().all(|found| found.error_code == 0)
            && !self.is_behind(request, answer)
    }
}

#[cfg(test)]
mod tests {
    use coordinator::protocol::{FindBatchesPartition, FindBatchesResult};
    use types::{LogOffset, ShardId, TopicId};

    use super::*;

    #[test]
    fn who_is_behind_is_not_believed() {
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
        let raised = [7, 6, -1].map(|high_watermark| seen.raise(partition(1), high_watermark));
        assert_eq!(raised, [7, 7, -1]);
        assert!(!seen.agrees(&request, &answer(&[5, 6], 0)));
        assert!(seen.agrees(&request, &answer(&[5, 7], 0)));
        assert!(
            !seen.agrees(&request, &answer(&[5, 7], 1)),
            "out of range by its own end only"
        );
        assert!(!seen.agrees(&request, &answer(&[5], 0)));
        // A leader may say that a partition or an offset is not there, but not that a partition was shorter.
        assert!(seen.is_behind(&request, &answer(&[5, 6], 1)));
        assert!(!seen.is_behind(&request, &answer(&[5, -1], 3)));
        assert!(!seen.is_behind(&request, &answer(&[0, 8], 0)));
        seen.forget(&partition(1));
        assert!(seen.agrees(&request, &answer(&[5, 0], 0)));
    }
}
