use std::sync::Arc;
use std::time::Duration;

use cluster::image::MetadataImage;
use coordinator::protocol::{FindBatchesRequest, FindBatchesResponse};
use env::Instant;
use parking_lot::Mutex;
use types::{FastMap, TopicPartition};

/// Partitions of topics that the image does not have are forgotten after this time. News of a new topic may come before the
/// image that names it.
const UNKNOWN: Duration = Duration::from_secs(60);

/// The largest bounds that this node has seen of each partition. Who is behind one of them is not
/// believed, so that no client of this node sees a partition go backwards. The fetch windows know bounds, too, but
/// forget them when the leader is silent, which is when followers are asked.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    partitions: FastMap<TopicPartition, Mark>,
    /// When it was last looked for topics that are gone.
    pruned: Option<Instant>,
}

/// Of a partition. Both only ever grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// First offset that is kept.
    pub log_start_offset: i64,
    /// The offset after the last record.
    pub high_watermark: i64,
}

#[derive(Debug)]
struct Mark {
    bounds: Bounds,
    /// When it was last heard of.
    heard: Instant,
}

impl Seen {
    /// Takes note of bounds, with a high watermark below 0 there are none, and returns the largest of the partition.
    pub fn raise(&self, partition: TopicPartition, bounds: Bounds, now: Instant) -> Bounds {
        if bounds.high_watermark < 0 {
            return bounds;
        }
        let mut state = self.0.lock();
        let mark = state
            .partitions
            .entry(partition)
            .or_insert(Mark { bounds, heard: now });
        mark.bounds = Bounds {
            log_start_offset: bounds.log_start_offset.max(mark.bounds.log_start_offset),
            high_watermark: bounds.high_watermark.max(mark.bounds.high_watermark),
        };
        mark.heard = now;
        mark.bounds
    }

    /// The partition is gone.
    pub fn forget(&self, partition: &TopicPartition) {
        self.0.lock().partitions.remove(partition);
    }

    /// Forgets what is gone: not all of it is told by a leader, and late answers may have brought it back. Looks no more often than
    /// partitions can become due.
    pub fn prune(&self, image: &MetadataImage, now: Instant) {
        let due = |since: Instant| now.saturating_duration_since(since) >= UNKNOWN;
        let mut state = self.0.lock();
        if state.pruned.is_some_and(|pruned| !due(pruned)) {
            return;
        }
        state.pruned = Some(now);
        state
            .partitions
            .retain(|partition, mark| image.topic_by_id(partition.topic).is_some() || !due(mark.heard));
    }

    /// Whether an answer shows a partition as it was before what was seen of it: it comes from a node that is behind, be it a leader
    /// that does not know yet that it was deposed.
    pub fn is_behind(&self, request: &FindBatchesRequest, answer: &FindBatchesResponse) -> bool {
        let state = self.0.lock();
        let mut pairs = request.partitions.iter().zip(&answer.partitions);
        pairs.any(|(wanted, found)| {
            let mark = state.partitions.get(&wanted.partition);
            let known = mark.map_or_else(Bounds::default, |mark| mark.bounds);
            let shorter = found.high_watermark < known.high_watermark;
            found.high_watermark >= 0 && (shorter || found.log_start_offset < known.log_start_offset)
        })
    }

    /// Whether a follower's answer is complete and behind nothing that was seen. Its errors do not count: a partition
    /// that it does not know, or an offset above its end, may be there already.
    pub fn agrees(&self, request: &FindBatchesRequest, answer: &FindBatchesResponse) -> bool {
        request.partitions.len() == answer.partitions.len()
            && answer.partitions.iter().all(|found| found.error_code == 0)
            && (!self.is_behind(request, answer) || env::mutation("believe-follower"))
    }

    /// How many partitions something is remembered of.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.lock().partitions.len()
    }
}

#[cfg(test)]
mod tests {
    use cluster::image::Topic;
    use coordinator::protocol::{FindBatchesPartition, FindBatchesResult};
    use env::Env;
    use types::{LogOffset, ShardId, TopicId};
    use uuid::Uuid;

    use super::*;
    use crate::metadata::metadata;

    fn partition(topic: u128, partition: i32) -> TopicPartition {
        TopicPartition {
            topic: TopicId(Uuid::from_u128(topic)),
            partition,
        }
    }

    #[test]
    fn who_is_behind_is_not_believed() {
        let partition = |index| partition(1, index);
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
        let now = Env::production().instant();
        let seen = Seen::default();
        assert!(seen.agrees(&request, &answer(&[5, 5], 0)), "nothing was seen yet");
        let raise = |log_start_offset, high_watermark| {
            let bounds = Bounds {
                log_start_offset,
                high_watermark,
            };
            let raised = seen.raise(partition(1), bounds, now);
            (raised.log_start_offset, raised.high_watermark)
        };
        assert_eq!(
            [raise(0, 7), raise(0, 6), raise(-1, -1)],
            [(0, 7), (0, 7), (-1, -1)]
        );
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
        // Its beginning was deleted.
        assert_eq!(raise(2, 3), (2, 7));
        assert!(seen.is_behind(&request, &answer(&[5, 8], 0)));
        seen.forget(&partition(1));
        assert!(seen.agrees(&request, &answer(&[5, 0], 0)));
    }

    #[test]
    fn topics_that_are_gone_are_forgotten_and_new_ones_are_not() {
        let begin = Env::production().instant();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut record = metadata().1.image().record().clone();
        record.topics = vec![Arc::new(Topic {
            id: TopicId(Uuid::from_u128(1)),
            name: "kept".to_owned(),
            partitions: vec![ShardId(0)],
            configs: Vec::new(),
        })];
        let image = MetadataImage::new(record);
        let seen = Seen::default();
        let up_to = |high_watermark| Bounds {
            log_start_offset: 0,
            high_watermark,
        };
        seen.prune(&image, after(0));
        seen.raise(partition(1, 0), up_to(5), after(1));
        seen.raise(partition(2, 0), up_to(5), after(1));
        // Another one that the image does not name yet.
        seen.raise(partition(3, 0), up_to(5), after(50));
        seen.prune(&image, after(59));
        assert_eq!(seen.len(), 3, "not before a minute is over");
        seen.prune(&image, after(61));
        assert_eq!(seen.len(), 2);
        // Late answers.
        seen.raise(partition(2, 0), up_to(5), after(62));
        seen.prune(&image, after(200));
        assert_eq!(seen.len(), 1);
        assert_eq!(seen.raise(partition(1, 0), up_to(4), after(201)), up_to(5));
    }
}
