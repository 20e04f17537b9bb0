//! Which coordinator leads which shard, and which one follows it.

use std::collections::{BTreeMap, BTreeSet};

use types::{NodeId, ShardId};

/// Who may have what.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    /// Nodes that shards can be placed on, with their zones.
    pub nodes: &'a BTreeMap<NodeId, String>,
    /// A shard that a node could not open is placed elsewhere, unless that holds for all nodes.
    pub barred: &'a BTreeSet<(ShardId, NodeId)>,
}

impl Candidates<'_> {
    /// Whether `shard` can be placed on `node`.
    pub fn admit(&self, shard: ShardId, node: NodeId) -> bool {
        let bars = |node: &NodeId| self.barred.contains(&(shard, *node));
        self.nodes.contains_key(&node) && (!bars(&node) || self.nodes.keys().all(bars))
    }

    fn of(&self, shard: ShardId) -> impl Iterator<Item = NodeId> {
        self.nodes
            .keys()
            .copied()
            .filter(move |node| self.admit(shard, *node))
    }

    fn zone(&self, node: NodeId) -> Option<&str> {
        self.nodes.get(&node).map(String::as_str)
    }

    /// Number of shards in `placed` on the nodes of a zone.
    fn in_zone(&self, placed: &BTreeMap<ShardId, NodeId>, zone: Option<&String>) -> usize {
        let same = |node: &&NodeId| zone.is_some() && self.nodes.get(node) == zone;
        placed.values().filter(same).count()
    }
}

fn load(placed: &BTreeMap<ShardId, NodeId>, node: NodeId) -> usize {
    placed.values().filter(|n| **n == node).count()
}

/// Places shards `0..shards`: every shard on one node, the numbers of any two nodes differing by one at most (as far as
/// nodes are not barred), and those of any two zones as far as that allows. Otherwise shards stay where they are. One that is nowhere
/// goes to its follower, which has it in memory; without one to the node with the fewest shards, among equal ones to that whose zone has
/// the fewest. Without nodes nothing is placed.
pub fn place(
    shards: u32,
    current: &BTreeMap<ShardId, NodeId>,
    followers: &BTreeMap<ShardId, NodeId>,
    candidates: Candidates<'_>,
) -> BTreeMap<ShardId, NodeId> {
    let mut placed: BTreeMap<ShardId, NodeId> = current
        .iter()
        .filter(|(shard, node)| shard.0 < shards && candidates.admit(**shard, **node))
        .map(|(shard, node)| (*shard, *node))
        .collect();
    for shard in (0..shards).map(ShardId) {
        if placed.contains_key(&shard) {
            continue;
        }
        let rank = |node: &NodeId| {
            let zone = candidates.in_zone(&placed, candidates.nodes.get(node));
            (load(&placed, *node), zone, *node)
        };
        let follower = followers
            .get(&shard)
            .copied()
            .filter(|node| candidates.admit(shard, *node));
        if let Some(node) = follower.or_else(|| candidates.of(shard).min_by_key(rank)) {
            placed.insert(shard, node);
        }
    }
    // Each move makes nodes more even, or zones and nodes no less: there is an end, and at the end nothing moves.
    while let Some((shard, to)) =
        next_move(&placed, followers, candidates).or_else(|| next_zone_move(&placed, followers, candidates))
    {
        placed.insert(shard, to);
    }
    placed
}

/// A move that evens things out: from a node with the most shards to one with the fewest, if that is at least two
/// fewer. A shard that is followed there already comes first.
fn next_move(
    placed: &BTreeMap<ShardId, NodeId>,
    followers: &BTreeMap<ShardId, NodeId>,
    candidates: Candidates<'_>,
) -> Option<(ShardId, NodeId)> {
    let rank = |node: &NodeId| {
        (
            load(placed, *node),
            candidates.in_zone(placed, candidates.nodes.get(node)),
            *node,
        )
    };
    let least = candidates.nodes.keys().map(rank).min()?;
    let most = candidates.nodes.keys().map(rank).max()?;
    if most.0 - least.0 < 2 {
        return None;
    }
    let movable = placed
        .iter()
        .filter(|(shard, node)| **node == most.2 && candidates.admit(**shard, least.2));
    movable
        .map(|(shard, _)| *shard)
        .max_by_key(|shard| (followers.get(shard) == Some(&least.2), *shard))
        .map(|shard| (shard, least.2))
}

/// A move that evens zones out: to a node with fewer shards, in a zone with at least two fewer. The zone with the fewest comes first, then
/// a shard that is followed there already.
fn next_zone_move(
    placed: &BTreeMap<ShardId, NodeId>,
    followers: &BTreeMap<ShardId, NodeId>,
    candidates: Candidates<'_>,
) -> Option<(ShardId, NodeId)> {
    let mut zones: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    let mut loads: BTreeMap<NodeId, usize> = BTreeMap::new();
    for node in placed.values() {
        *zones.entry(candidates.zone(*node)).or_default() += 1;
        *loads.entry(*node).or_default() += 1;
    }
    let in_zone = |node: NodeId| zones.get(&candidates.zone(node)).copied().unwrap_or(0);
    let on_node = |node: NodeId| loads.get(&node).copied().unwrap_or(0);
    let better = placed.iter().flat_map(|(shard, from)| {
        let to = candidates.of(*shard).filter(|to| on_node(*from) > on_node(*to));
        to.filter_map(|to| {
            let gain = in_zone(*from).saturating_sub(in_zone(to));
            (gain >= 2).then_some((gain, followers.get(shard) == Some(&to), *shard, to))
        })
    });
    better.max().map(|(_, _, shard, to)| (shard, to))
}

/// A follower for every shard of `leaders`, on another node, as far as there are two. A new one is in another zone than the leader if
/// possible, where the fewest other shards of that leader are followed (if it dies, its shards spread), and where the fewest shards are
/// led and followed. Followers stay where they are; only one that is in its leader's zone moves to another, and that one at a time, when
/// all are `warm`: a shard whose follower moves has none for a while.
pub fn place_followers(
    leaders: &BTreeMap<ShardId, NodeId>,
    current: &BTreeMap<ShardId, NodeId>,
    candidates: Candidates<'_>,
    warm: impl Fn(ShardId, NodeId) -> bool,
) -> BTreeMap<ShardId, NodeId> {
    let fits = |shard: &ShardId, node: &NodeId| {
        leaders.get(shard).is_some_and(|leader| leader != node) && candidates.admit(*shard, *node)
    };
    let mut placed: BTreeMap<ShardId, NodeId> = current
        .iter()
        .filter(|(shard, node)| fits(shard, node))
        .map(|(shard, node)| (*shard, *node))
        .collect();
    let best = |placed: &BTreeMap<ShardId, NodeId>, shard: ShardId, leader: NodeId| {
        let rank = |node: &NodeId| {
            let same_zone = candidates.zone(*node) == candidates.zone(leader);
            let siblings = placed
                .iter()
                .filter(|(other, follower)| *follower == node && leaders.get(other) == Some(&leader));
            let load = load(leaders, *node) + load(placed, *node);
            (same_zone, siblings.count(), load, *node)
        };
        candidates
            .of(shard)
            .filter(|node| *node != leader)
            .min_by_key(rank)
    };
    for (shard, leader) in leaders {
        if !placed.contains_key(shard)
            && let Some(node) = best(&placed, *shard, *leader)
        {
            placed.insert(*shard, node);
        }
    }
    if placed.iter().all(|(shard, node)| warm(*shard, *node)) {
        let moved = leaders.iter().find_map(|(shard, leader)| {
            let zone = candidates.zone(*leader);
            let near = candidates.zone(*placed.get(shard)?) == zone;
            let node = best(&placed, *shard, *leader)?;
            (near && candidates.zone(node) != zone).then_some((*shard, node))
        });
        placed.extend(moved);
    }
    placed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Placed = BTreeMap<ShardId, NodeId>;

    fn nodes(ids: &[(i32, &str)]) -> BTreeMap<NodeId, String> {
        ids.iter()
            .map(|(id, zone)| (NodeId(*id), (*zone).to_owned()))
            .collect()
    }

    fn plain(shards: u32, current: &Placed, nodes: &BTreeMap<NodeId, String>) -> Placed {
        let barred = &BTreeSet::new();
        place(shards, current, &Placed::new(), Candidates { nodes, barred })
    }

    /// Every follower is warm.
    fn all(_: ShardId, _: NodeId) -> bool {
        true
    }

    fn placed(of: &[(u32, i32)]) -> Placed {
        of.iter()
            .map(|(shard, node)| (ShardId(*shard), NodeId(*node)))
            .collect()
    }

    #[test]
    fn new_shards_spread_over_zones() {
        let all = nodes(&[(0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c")]);
        let placed = plain(3, &Placed::new(), &all);
        let mut zones: Vec<_> = placed.values().map(|node| all[node].as_str()).collect();
        zones.sort_unstable();
        assert_eq!(zones, ["a", "b", "c"]);
    }

    #[test]
    fn followers_are_elsewhere_in_another_zone_and_spread() {
        let nodes = nodes(&[(0, "a"), (1, "a"), (2, "b"), (3, "b")]);
        let barred = &BTreeSet::new();
        let candidates = Candidates {
            nodes: &nodes,
            barred,
        };
        let leaders = placed(&[(0, 0), (1, 1), (2, 2), (3, 3)]);
        let followers = place_followers(&leaders, &Placed::new(), candidates, all);
        for (shard, follower) in &followers {
            assert_ne!(nodes[follower], nodes[&leaders[shard]]);
        }
        let distinct: BTreeSet<_> = followers.values().collect();
        assert_eq!((followers.len(), distinct.len()), (4, 4));
        assert_eq!(place_followers(&leaders, &followers, candidates, all), followers);
    }

    #[test]
    fn followers_return_to_another_zone_one_at_a_time() {
        let nodes = nodes(&[(0, "a"), (1, "a"), (2, "b")]);
        let barred = &BTreeSet::new();
        let candidates = Candidates {
            nodes: &nodes,
            barred,
        };
        let leaders = placed(&[(0, 0), (1, 1), (2, 2)]);
        let mut followers = placed(&[(0, 1), (1, 0), (2, 0)]);
        for expected in [[(0, 2), (1, 0), (2, 0)], [(0, 2), (1, 2), (2, 0)]] {
            let cold = |shard: ShardId, _: NodeId| shard != ShardId(2);
            assert_eq!(place_followers(&leaders, &followers, candidates, cold), followers);
            followers = place_followers(&leaders, &followers, candidates, all);
            assert_eq!(followers, placed(&expected));
        }
        assert_eq!(place_followers(&leaders, &followers, candidates, all), followers);
    }

    #[test]
    fn one_zone_or_one_node_is_all_there_is() {
        let barred = &BTreeSet::new();
        let two = nodes(&[(0, "a"), (1, "a")]);
        let leaders = placed(&[(0, 0)]);
        let candidates = Candidates { nodes: &two, barred };
        assert_eq!(
            place_followers(&leaders, &Placed::new(), candidates, all),
            placed(&[(0, 1)])
        );
        let one = nodes(&[(0, "a")]);
        let candidates = Candidates { nodes: &one, barred };
        assert_eq!(
            place_followers(&leaders, &placed(&[(0, 1)]), candidates, all),
            Placed::new()
        );
    }

    #[test]
    fn a_lost_shard_goes_to_its_follower() {
        let nodes = nodes(&[(0, "a"), (1, "b"), (2, "c")]);
        let barred = &BTreeSet::new();
        let candidates = Candidates {
            nodes: &nodes,
            barred,
        };
        let current = placed(&[(0, 0), (1, 1), (2, 2), (3, 9)]);
        for follower in [0, 1, 2] {
            let followers = placed(&[(3, follower)]);
            let after = place(4, &current, &followers, candidates);
            assert_eq!(after, placed(&[(0, 0), (1, 1), (2, 2), (3, follower)]));
        }
    }

    #[test]
    fn a_shard_that_cannot_be_opened_goes_elsewhere_unless_nobody_can() {
        let nodes = nodes(&[(0, "a"), (1, "b")]);
        let current = placed(&[(0, 0), (1, 1)]);
        let barred = BTreeSet::from([(ShardId(0), NodeId(0))]);
        let candidates = Candidates {
            nodes: &nodes,
            barred: &barred,
        };
        let after = place(2, &current, &Placed::new(), candidates);
        assert_eq!(after[&ShardId(0)], NodeId(1));
        let barred = BTreeSet::from([(ShardId(0), NodeId(0)), (ShardId(0), NodeId(1))]);
        let candidates = Candidates {
            nodes: &nodes,
            barred: &barred,
        };
        assert_eq!(place(2, &current, &Placed::new(), candidates), current);
    }

    proptest! {
        #[test]
        fn balanced_and_sticky(
            shards in 0..12u32,
            current in prop::collection::btree_map((0..12u32).prop_map(ShardId), (0..6i32).prop_map(NodeId), 0..12),
            nodes in prop::collection::btree_map((0..6i32).prop_map(NodeId), Just("a".to_owned()), 0..6),
        ) {
            let placed = plain(shards, &current, &nodes);
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
            prop_assert_eq!(&plain(shards, &placed, &nodes), &placed, "a second placement moves nothing");

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

        #[test]
        fn zones_even_out_from_anywhere_and_then_nothing_moves(
            shards in 0..12u32,
            current in prop::collection::btree_map((0..12u32).prop_map(ShardId), (0..7i32).prop_map(NodeId), 0..12),
            followers in prop::collection::btree_map((0..12u32).prop_map(ShardId), (0..7i32).prop_map(NodeId), 0..12),
            nodes in prop::collection::btree_map((0..7i32).prop_map(NodeId), "[abc]", 1..7),
        ) {
            let barred = &BTreeSet::new();
            let candidates = Candidates { nodes: &nodes, barred };
            let (mut leaders, mut followers) = (current, followers);
            for step in 0.. {
                let placed = place(shards, &leaders, &followers, candidates);
                let followed = place_followers(&placed, &followers, candidates, all);
                if (&placed, &followed) == (&leaders, &followers) {
                    break;
                }
                (leaders, followers) = (placed, followed);
                prop_assert!(step < 20, "it goes on moving");
            }
            let in_zone = |node: &NodeId| candidates.in_zone(&leaders, nodes.get(node));
            for (from, to) in nodes.keys().flat_map(|from| nodes.keys().map(move |to| (from, to))) {
                let (from_has, to_has) = (load(&leaders, *from), load(&leaders, *to));
                prop_assert!(from_has <= to_has + 1);
                prop_assert!(from_has <= to_has || in_zone(from) <= in_zone(to) + 1, "{} {}: {:?}", from, to, leaders);
            }
            let zones: BTreeSet<_> = nodes.values().collect();
            for (shard, leader) in &leaders {
                match followers.get(shard) {
                    Some(follower) if zones.len() > 1 => prop_assert_ne!(&nodes[follower], &nodes[leader]),
                    Some(follower) => prop_assert_ne!(follower, leader),
                    None => prop_assert_eq!(nodes.len(), 1),
                }
            }
        }
    }
}
