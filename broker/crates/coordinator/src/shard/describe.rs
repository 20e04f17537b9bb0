//! What administrators ask of partitions: sizes and producers.

use rusqlite::{Connection, OptionalExtension};
use types::{Timestamp, TopicPartition};

use super::ShardService;
use super::producer::Producer;
use super::service::error_code;
use crate::codes;
use crate::protocol::{
    DescribePartitionsRequest, DescribePartitionsResponse, PartitionDescription, ProducerDescription,
};

impl ShardService {
    /// `DisklessDescribePartitions`; of the committed state.
    pub async fn describe_partitions(
        &self,
        request: DescribePartitionsRequest,
    ) -> DescribePartitionsResponse {
        let described = self.read(|db| {
            let one = |partition| describe(db, partition, request.producers);
            request.partitions.iter().map(one).collect()
        });
        match described.await {
            Ok(partitions) => DescribePartitionsResponse {
                error_code: codes::NONE,
                partitions,
            },
            Err(error) => DescribePartitionsResponse {
                error_code: error_code(&error),
                partitions: Vec::new(),
            },
        }
    }
}

fn describe(db: &Connection, id: &TopicPartition, producers: bool) -> rusqlite::Result<PartitionDescription> {
    let found = db
        .prepare_cached("SELECT num, bytes FROM partitions WHERE topic = ? AND partition = ?")?
        .query_row((id.topic.0.as_bytes(), id.partition), |row| {
            Ok((row.get::<_, u32>(0)?, row.get::<_, i64>(1)?))
        })
        .optional()?;
    let Some((num, bytes)) = found else {
        return Ok(PartitionDescription {
            error_code: codes::UNKNOWN_TOPIC_OR_PARTITION,
            bytes: 0,
            producers: Vec::new(),
        });
    };
    Ok(PartitionDescription {
        error_code: codes::NONE,
        bytes: bytes.cast_unsigned(),
        producers: if producers {
            producers_of(db, num)?
        } else {
            Vec::new()
        },
    })
}

fn producers_of(db: &Connection, num: u32) -> rusqlite::Result<Vec<ProducerDescription>> {
    let mut select = db.prepare_cached(
        "SELECT producer, epoch, used_at, batches FROM producers WHERE num = ? ORDER BY producer",
    )?;
    let rows = select.query_map((num,), |row| {
        let (epoch, used_at) = (row.get(1)?, Timestamp(row.get(2)?));
        let last_sequence = Producer::unpack(epoch, used_at, row.get_ref(3)?.as_blob()?)
            .ok()
            .and_then(|producer| producer.last_sequence());
        Ok(ProducerDescription {
            id: row.get(0)?,
            epoch,
            last_sequence: last_sequence.unwrap_or(-1),
            used_at,
        })
    })?;
    rows.collect()
}
