//! Questions about partitions, put to the leaders of their shards.

use std::collections::BTreeMap;

use coordinator::protocol::{DescribePartitionsRequest, PartitionDescription};
use env::Instant;
use kafka_wire::ResponseError;
use types::{ShardId, TopicPartition};

use super::Api;

/// Has `ask` put each shard's share of `asked` to it, all in parallel. One result for each item, in order; `None`: its
/// shard gave no answer.
pub(super) async fn each<P, R, F>(
    asked: Vec<(ShardId, P)>,
    ask: impl Fn(ShardId, Vec<P>) -> F,
) -> Vec<Option<R>>
where
    F: Future<Output = Option<Vec<R>>>,
{
    let mut results: Vec<Option<R>> = asked.iter().map(|_| None).collect();
    let mut by_shard: BTreeMap<ShardId, (Vec<usize>, Vec<P>)> = BTreeMap::new();
    for (index, (shard, item)) in asked.into_iter().enumerate() {
        let (indexes, items) = by_shard.entry(shard).or_default();
        indexes.push(index);
        items.push(item);
    }
    let answers = by_shard.into_iter().map(|(shard, (indexes, items))| {
        let answer = ask(shard, items);
        async move { (indexes, answer.await) }
    });
    for (indexes, answer) in futures::future::join_all(answers).await {
        for (index, result) in indexes.into_iter().zip(answer.unwrap_or_default()) {
            if let Some(place) = results.get_mut(index) {
                *place = Some(result);
            }
        }
    }
    results
}

impl Api {
    /// What partitions take and (with `producers`) who writes to them, in the order of `asked`.
    pub(super) async fn describe_partitions(
        &self,
        asked: Vec<(ShardId, TopicPartition)>,
        producers: bool,
        deadline: Instant,
    ) -> Vec<Result<PartitionDescription, ResponseError>> {
        let ask = |shard, partitions| async move {
            let request = DescribePartitionsRequest {
                shard,
                partitions,
                producers,
            };
            let answer = self.coordinators.describe_partitions(&request, deadline).await;
            Some(answer.ok().filter(|answer| answer.error_code == 0)?.partitions)
        };
        let result = |described: Option<PartitionDescription>| match described {
            None => Err(ResponseError::CoordinatorNotAvailable),
            Some(described) => match ResponseError::try_from_code(described.error_code) {
                Some(error) => Err(error),
                None => Ok(described),
            },
        };
        each(asked, ask).await.into_iter().map(result).collect()
    }
}
