//! How much of what is there goes into one answer.

use coordinator::protocol::Coordinate;

/// What one partition has to offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<'a> {
    /// In order, from the wanted offset on.
    pub(super) batches: &'a [Coordinate],
    /// The client's limit for the partition, in bytes.
    pub(super) max_bytes: u64,
}

/// The number of batches of each partition, within `max_bytes` over all. Those that have something get their share in
/// order, and `random` says which of them is the first, so that each is as often the first as any other: a turn that
/// passed from partition to partition would mostly pass over empty ones, always to the same successor.
///
/// As in KIP-74 the first partition gives at least one batch, whatever its size: a consumer must always get on. No
/// other one exceeds a limit.
pub(super) fn share(offers: &[Offer<'_>], max_bytes: u64, random: u64) -> Vec<usize> {
    let mut counts = vec![0; offers.len()];
    let mut left = max_bytes;
    let mut nothing_yet = true;
    let offering = offers
        .iter()
        .enumerate()
        .filter(|(_, offer)| !offer.batches.is_empty());
    let mut order: Vec<usize> = offering.map(|(index, _)| index).collect();
    let first = random.checked_rem(order.len() as u64).unwrap_or(0);
    order.rotate_left(usize::try_from(first).unwrap_or(0));
    for index in order {
        let (Some(offer), Some(count)) = (offers.get(index), counts.get_mut(index)) else {
            continue;
        };
        let mut within = offer.max_bytes.min(left);
        for batch in offer.batches {
            let size = u64::from(batch.size);
            if size > within && !nothing_yet {
                break;
            }
            nothing_yet = false;
            within = within.saturating_sub(size);
            left = left.saturating_sub(size);
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use types::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn batches(sizes: &[u32]) -> Vec<Coordinate> {
        let coordinate = |(index, size): (usize, &u32)| Coordinate {
            base_offset: index as i64,
            last_offset: index as i64,
            object: Uuid::nil(),
            object_size: 0,
            position: 0,
            size: *size,
            max_timestamp: Timestamp(0),
            log_append_time: Timestamp(-1),
        };
        sizes.iter().enumerate().map(coordinate).collect()
    }

    fn shared(partitions: &[(&[u32], u64)], max_bytes: u64, random: u64) -> Vec<usize> {
        let all: Vec<_> = partitions
            .iter()
            .map(|(sizes, limit)| (batches(sizes), *limit))
            .collect();
        let offers: Vec<_> = all
            .iter()
            .map(|(batches, max_bytes)| Offer {
                batches,
                max_bytes: *max_bytes,
            })
            .collect();
        share(&offers, max_bytes, random)
    }

    #[test]
    fn limits_hold_for_each_partition_and_for_all() {
        assert_eq!(
            shared(&[(&[10, 10, 10], 20), (&[10, 10, 10], 100)], 1000, 0),
            [2, 3]
        );
        assert_eq!(shared(&[(&[10, 10, 10], 100), (&[10, 10], 100)], 40, 0), [3, 1]);
    }

    #[test]
    fn only_the_first_non_empty_partition_may_overshoot() {
        assert_eq!(
            shared(&[(&[], 10), (&[500, 1], 10), (&[500], 1000)], 100, 0),
            [0, 1, 0]
        );
        assert_eq!(shared(&[(&[5], 10), (&[50], 10)], 100, 0), [1, 0]);
        assert_eq!(shared(&[(&[7], 0)], 0, 0), [1]);
    }

    #[test]
    fn any_of_those_that_have_something_may_be_the_first() {
        let partitions: [(&[u32], u64); 3] = [(&[100], 100), (&[100], 100), (&[100], 100)];
        assert_eq!(shared(&partitions, 100, 0), [1, 0, 0]);
        assert_eq!(shared(&partitions, 100, 1), [0, 1, 0]);
        assert_eq!(shared(&partitions, 200, 5), [1, 0, 1]);
        let few: [(&[u32], u64); 4] = [(&[], 100), (&[100], 100), (&[100], 100), (&[], 100)];
        assert_eq!(shared(&few, 100, 0), [0, 1, 0, 0]);
        assert_eq!(shared(&few, 100, 1), [0, 0, 1, 0]);
        assert!(shared(&[], 100, 5).is_empty());
    }
}
