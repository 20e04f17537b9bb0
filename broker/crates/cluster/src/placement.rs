//! Which coordinator leads which shard.

use std::collections::BTreeMap;

use types::{NodeId, ShardId};

/// Places shards `0..shards` over `nodes` (and their zones): every shard on one node, the numbers of any two nodes
/// differing by one at most. Shards stay where they are as far as that allows; among equal nodes the one whose zone
/// has the fewest shards is chosen. Without nodes nothing is placed.
pub fn place(
    shards: u32,
    current: &BTreeMap<ShardId, NodeId>,
    nodes: &BTreeMap<NodeId, String>,
) -> BTreeMap<ShardId, NodeId> {
    let mut placed: BTreeMap<ShardId, NodeId> = current
        .iter()
        .filter(|(shard, node)| shard.0 < shards && nodes.contains_key(node))
        .map(|(shard, node)| (*shard, *node))
        .collect();
    for shard in (0..shards).map(ShardId) {
        if !placed.contains_key(&shard)
            && let Some((_, _, node)) = loads(&placed, nodes).min()
        {
            placed.insert(shard, node);
        }
    }
    while let (Some(least), Some(most)) = (loads(&placed, nodes).min(), loads(&placed, nodes).max()) {
        if most.0 - least.0 < 2 {
            break;
        }
        let Some(shard) = placed
            .iter()
            .rev()
            .find(|(_, node)| **node == most.2)
            .map(|(shard, _)| *shard)
        else {
            break;
        };
        placed.insert(shard, least.2);
    }
    placed
}

/// For every node: its shards, those of its zone, itself.
fn loads<'a>(
    placed: &'a BTreeMap<ShardId, NodeId>,
    nodes: &'a BTreeMap<NodeId, String>,
) -> impl Iterator<Item = (usize, usize, NodeId)> + 'a {
    let of_zone = |zone: &String| {
        placed
            .values()
            .filter(|node| nodes.get(node) == Some(zone))
            .count()
    };
    nodes.iter().map(move |(node, zone)| {
        (
            placed.values().filter(|n| *n == node).count(),
            of_zone(zone),
            *node,
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nodes(ids: &[(i32, &str)]) -> BTreeMap<NodeId, String> {
        ids.iter()
            .map(|(id, zone)| (NodeId(*id), (*zone).to_owned()))
            .collect()
    }

    #[test]
    fn new_shards_spread_over_zones() {
        let all = nodes(&[(0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c")]);
        let placed = place(3, &BTreeMap::new(), &all);
        let mut zones: Vec<_> = placed.values().map(|node| all[node].as_str()).collect();
        zones.sort_unstable();
        assert_eq!(zones, ["a", "b", "c"]);
    }

    proptest! {
        #[test]
        fn balanced_and_sticky(
            shards in 0..12u32,
            current in prop::collection::btree_map((0..12u32).prop_map(ShardId), (0..6i32).prop_map(NodeId), 0..12),
            nodes in prop::collection::btree_map((0..6i32).prop_map(NodeId), "[abc]", 0..6),
        ) {
            let placed = place(shards, &current, &nodes);
            if nodes.is_empty() {
                prop_assert!(placed.is_empty());
                return Ok(());
            }
            let all: Vec<u32> = placed.keys().map(|s| s.0).collect();
            prop_assert_eq!(all, (0..shards).collect::<Vec<_>>());
            prop_assert!(placed.values().all(|node| nodes.contains_key(node)));
            let count = |map: &BTreeMap<ShardId, NodeId>, node: &NodeId| map.values().filter(|n| *n == node).count();
            let counts: Vec<_> = nodes.keys().map(|node| count(&placed, node)).collect();
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            prop_assert_eq!(&place(shards, &placed, &nodes), &placed, "a second placement moves nothing");

            // Nobody who may stay moves, but for what a node had too many of: at the fewest, what exceeds the share.
            let valid: BTreeMap<_, _> = current.iter().filter(|(s, n)| s.0 < shards && nodes.contains_key(n))
                .map(|(s, n)| (*s, *n)).collect();
            let moved = valid.iter().filter(|(shard, node)| placed[shard] != **node).count();
            let (share, larger) = (shards as usize / nodes.len(), shards as usize % nodes.len());
            let mut before: Vec<_> = nodes.keys().map(|node| count(&valid, node)).collect();
            before.sort_unstable_by(|a, b| b.cmp(a));
            let needed: usize = before.iter().enumerate()
                .map(|(i, n)| n.saturating_sub(share + usize::from(i < larger))).sum();
            prop_assert_eq!(moved, needed);
        }
    }
}
