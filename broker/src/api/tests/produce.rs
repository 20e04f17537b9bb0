//! Batches whose records are not read where they come in.

use super::*;
use crate::produce::testing::{varint, with_records};

/// A batch of an idempotent producer with one record of so many bytes, all the same, compressed with zstd.
fn compressed(sequence: i32, size: usize, time: i64) -> Bytes {
    // No attributes, deltas or key; the value, and no headers.
    let value = [varint(size as u64), vec![0; size], vec![0]].concat();
    let record = [vec![0, 0, 0, 1], value].concat();
    let records = [varint(record.len() as u64), record].concat();
    let records = zstd::encode_all(&records[..], 1).unwrap();
    with_records(&records, 1, time, |header| {
        header.attributes = 4;
        (header.producer_id, header.producer_epoch, header.base_sequence) = (5, 0, sequence);
    })
}

#[tokio::test(start_paused = true)]
async fn batches_that_take_long_to_read_keep_their_place() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    let now = c.now();
    // Every third decompresses to more than is read at once, one to more than is read at all.
    for sequence in 0..9 {
        let batch = match sequence % 3 {
            0 => compressed(sequence, 1 << 20, now),
            1 => compressed(sequence, 100, now),
            _ => sequenced(5, sequence, 1, now),
        };
        client.send(&produce("t", 0, batch, -1), 9).await;
    }
    let bomb = compressed(9, 300 << 20, now);
    assert!(bomb.len() < 100_000);
    client.send(&produce("t", 0, bomb, -1), 9).await;
    client
        .send(&produce("t", 0, sequenced(5, 9, 1, now), -1), 9)
        .await;
    let too_large = ResponseError::MessageTooLarge.code();
    for (code, offset) in (0..9).map(|offset| (0, offset)).chain([(too_large, -1), (0, 9)]) {
        let (_, response) = client.receive::<ProduceRequest>(9).await;
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!((partition.error_code, partition.base_offset), (code, offset));
    }
}
