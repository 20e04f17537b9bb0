//! Who is alive and who leads which shard, as the controller sees it. Synchronous: time comes in as an argument.
//!
//! A node lives while its heartbeats come. A shard is led by the coordinator it is placed on; safety does not rest on that
//! (a new leader fences the old one), so a wrong guess here costs a move, never a record.
//!
//! Every shard has a *follower* on another coordinator, which keeps its view warm. Shards move to their followers: when
//! the leader is gone, when it wants to leave, and to even nodes and zones out (then the node that is to have the shard first
//! becomes its follower).
//!
//! A new controller knows nobody. For a *grace* it only listens: nodes register again and coordinators say what they
//! lead, which is adopted. It ends early when all are back whom the controller before knew. Only then are the remaining shards placed and a picture published; otherwise every change of
//! controller would move all shards and empty every client's metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use env::Instant;
use kafka_wire::ResponseError;
use metalog::Owner;
use types::{Epoch, FeatureLevel, FeatureLevels, NodeId, ShardId};
use uuid::Uuid;

use crate::image::{Broker, DEFAULT_PARTITIONS, ImageRecord, Shard};
use crate::picture::Picture;
use crate::placement::{self, Candidates};
use crate::protocol::{HeartbeatRequest, HeartbeatResponse};
use crate::state::Metadata;

/// How long a node may take to come back after its connection has ended. One that lives does so at once; a process that was
/// killed never does, and its death need not wait for the end of its session.
const RECONNECT: Duration = Duration::from_millis(500);

/// How long a planned hand-over waits for the old leader to give the shard up.
const HAND_OVER: Duration = Duration::from_secs(3);

/// How long a node that wants to leave keeps a shard while its next leader catches up.
const WARM_UP: Duration = Duration::from_secs(5);

/// How long a new controller listens before it decides anything.
#[derive(Clone, Debug, Default)]
pub struct Grace {
    /// This long,
    pub longest: Duration,
    /// or until all with these internal addresses are back, if there are any.
    pub awaited: BTreeSet<String>,
}

/// Liveness, placement and the picture that follows from them.
pub struct Controller {
    epoch: Epoch,
    session_timeout: Duration,
    /// Until then nothing is placed or published.
    grace_ends: Instant,
    listening: bool,
    /// Nodes that lived under the controller before; when all are back there is nobody to wait for.
    awaited: BTreeSet<String>,
    nodes: BTreeMap<NodeId, Node>,
    /// Where each shard is to be led.
    placement: BTreeMap<ShardId, NodeId>,
    /// Who keeps a warm view of each shard.
    followers: BTreeMap<ShardId, NodeId>,
    /// A move waits for its target to catch up, until then at the latest.
    warm_up_ends: Option<Instant>,
    /// Shards whose old leader was asked to give them up before the new one starts.
    leaving: BTreeMap<ShardId, Leaving>,
    metadata: Arc<Metadata>,
    /// What every node has to support. Ahead of `metadata` while a level is being finalised.
    feature_level: FeatureLevel,
    /// What is published.
    picture: Picture,
    /// Grows when there may be news for somebody.
    changes: u64,
}

struct Node {
    /// Its last heartbeat.
    said: HeartbeatRequest,
    expires: Instant,
    /// It wants to leave since then.
    draining_since: Option<Instant>,
    /// What it was last told; `None`: nothing yet.
    told: Option<Orders>,
    /// The process whose place it took; should that one live after all, it is refused.
    replaced: Option<Uuid>,
}

/// What a coordinator is to do.
#[derive(Clone, Default, PartialEq, Eq)]
struct Orders {
    lead: BTreeSet<ShardId>,
    follow: BTreeSet<ShardId>,
}

struct Leaving {
    from: NodeId,
    incarnation: Uuid,
    /// The old leader was told; when it no longer names the shard it has given it up.
    told: bool,
    deadline: Instant,
}

impl Controller {
    /// A controller that has just been elected, how long it listens before it decides anything, and what it gives to
    /// topics created without a number of partitions.
    pub fn new(
        owner: &Owner,
        epoch: Epoch,
        session_timeout: Duration,
        grace: Grace,
        default_partitions: u32,
        now: Instant,
    ) -> Controller {
        let image = ImageRecord {
            version: 0,
            controller_epoch: epoch.0,
            cluster_id: String::new(),
            controller: NodeId(owner.node_id),
            controller_address: owner.address.clone(),
            brokers: Vec::new(),
            topics: Vec::new(),
            shards: Vec::new(),
            group_shards: 0,
            feature_level: None,
            default_partitions: (default_partitions != DEFAULT_PARTITIONS).then_some(default_partitions),
        };
        Controller {
            epoch,
            session_timeout,
            grace_ends: now + grace.longest,
            listening: true,
            awaited: grace.awaited,
            nodes: BTreeMap::new(),
            placement: BTreeMap::new(),
            followers: BTreeMap::new(),
            warm_up_ends: None,
            leaving: BTreeMap::new(),
            metadata: Arc::default(),
            feature_level: FeatureLevel::FIRST,
            picture: Picture::new(image),
            changes: 0,
        }
    }

    /// Grows when there may be news for somebody who waits.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Takes note of what the log says now.
    pub fn set_metadata(&mut self, metadata: Arc<Metadata>, now: Instant) {
        if !Arc::ptr_eq(&metadata, &self.metadata) {
            self.feature_level = self.feature_level.max(metadata.feature_level);
            self.metadata = metadata;
            self.settle(now);
        }
    }

    /// Takes note of a heartbeat. DUPLICATE_BROKER_REGISTRATION while another process with this id lives;
    /// INVALID_REGISTRATION if the request makes no sense; UNSUPPORTED_VERSION if the node does not support what is
    /// finalised.
    pub fn heartbeat(&mut self, request: &HeartbeatRequest, now: Instant) -> Result<(), ResponseError> {
        if request.node.0 < 0 || !(request.broker || request.coordinator) {
            return Err(ResponseError::InvalidRegistration);
        }
        if !(request.leaving || supported(request).contains(self.feature_level)) {
            return Err(ResponseError::UnsupportedVersion);
        }
        let mut news = self.expire(now);
        let expires = now + self.session_timeout;
        match self.nodes.get_mut(&request.node) {
            Some(node) if node.said.incarnation == request.incarnation => {
                if request.sequence < node.said.sequence {
                    // Overtaken on its way: what it says is no longer so.
                    node.expires = expires;
                } else if request.leaving {
                    self.nodes.remove(&request.node);
                    tracing::info!(node = %request.node, "node left");
                    news = true;
                } else {
                    let moves = self.leaving.values().any(|leaving| leaving.from == request.node);
                    news |= moves || is_news(&node.said, request);
                    if knows_more(&node.said, request) {
                        // Somebody may wait for that; nothing else follows from it.
                        self.changes += 1;
                    }
                    node.said = request.clone();
                    node.draining_since = request.draining.then(|| node.draining_since.unwrap_or(now));
                    node.expires = expires;
                }
            }
            // Two processes cannot listen on one address: the other one is gone, and this is its next life.
            Some(node)
                if node.said.internal != request.internal || node.replaced == Some(request.incarnation) =>
            {
                return Err(ResponseError::DuplicateBrokerRegistration);
            }
            other if !request.leaving => {
                tracing::info!(node = %request.node, zone = request.zone, broker = request.broker,
                    coordinator = request.coordinator, "node registered");
                let replaced = other.map(|node| node.said.incarnation);
                let node = Node {
                    said: request.clone(),
                    expires,
                    draining_since: request.draining.then_some(now),
                    told: None,
                    replaced,
                };
                self.nodes.insert(request.node, node);
                news = true;
            }
            _ => {}
        }
        if news {
            self.settle(now);
        }
        Ok(())
    }

    /// The connection has ended that this heartbeat came on, before it was answered.
    pub fn lost_connection(&mut self, request: &HeartbeatRequest, now: Instant) {
        let newest = |node: &&mut Node| {
            (node.said.incarnation, node.said.sequence) == (request.incarnation, request.sequence)
        };
        if let Some(node) = self.nodes.get_mut(&request.node).filter(newest) {
            node.expires = node.expires.min(now + RECONNECT);
            self.changes += 1;
        }
    }

    /// What every node has to support.
    pub fn feature_level(&self) -> FeatureLevel {
        self.feature_level
    }

    /// A live node that does not support `level`, and what it does support.
    pub fn lacks(&self, level: FeatureLevel) -> Option<(NodeId, FeatureLevels)> {
        let mut nodes = self.nodes.iter().map(|(id, node)| (*id, supported(&node.said)));
        nodes.find(|(_, levels)| !levels.contains(level))
    }

    /// From now on only nodes that support `level` are taken in: it is about to be finalised.
    pub fn require(&mut self, level: FeatureLevel) {
        self.feature_level = self.feature_level.max(level);
    }

    /// Lets time pass: nodes that were silent for too long are gone.
    pub fn tick(&mut self, now: Instant) {
        if self.expire(now) || self.listening || !self.leaving.is_empty() || self.warm_up_ends.is_some() {
            self.settle(now);
        }
    }

    /// When [`Controller::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let sessions = self.nodes.values().map(|node| node.expires);
        let moves = self.leaving.values().map(|leaving| leaving.deadline);
        sessions
            .chain(moves)
            .chain(self.warm_up_ends)
            .chain(self.listening.then_some(self.grace_ends))
            .min()
    }

    /// The answer to a node, if there is news for it. `force`: also without news. Never for a process that does not
    /// hold the node id.
    pub fn answer(&mut self, request: &HeartbeatRequest, force: bool) -> Option<HeartbeatResponse> {
        let whole = self.picture.whole();
        let fresh =
            whole.version > 0 && (request.controller_epoch, request.version) != (self.epoch.0, whole.version);
        let mut orders = match request.coordinator {
            true => self.orders(request.node),
            false => Orders::default(),
        };
        let node = self
            .nodes
            .get_mut(&request.node)
            .filter(|node| node.said.incarnation == request.incarnation)?;
        // Nobody may be waiting for the answer to an older heartbeat: what it says does not count as told.
        let newest = node.said.sequence == request.sequence;
        let give = newest && request.coordinator && !self.listening && node.told.as_ref() != Some(&orders);
        if !(fresh || give || force) {
            return None;
        }
        if self.listening {
            // While the grace lasts a coordinator keeps what it has.
            orders.lead = request.leading.iter().copied().collect();
            orders.follow = request.following.iter().copied().collect();
        } else if newest {
            for (shard, leaving) in &mut self.leaving {
                if leaving.from == request.node && !orders.lead.contains(shard) {
                    leaving.told = true;
                }
            }
            node.told = Some(orders.clone());
        }
        let follows = request.controller_epoch == self.epoch.0 && request.reads_changes == Some(true);
        let changes = (fresh && follows).then(|| self.picture.changes_since(request.version));
        let changes = changes.flatten();
        Some(HeartbeatResponse {
            error_code: 0,
            controller_epoch: self.epoch.0,
            image: (fresh && changes.is_none()).then(|| self.picture.whole().as_ref().clone()),
            lead: orders.lead.into_iter().collect(),
            follow: orders.follow.into_iter().collect(),
            feature_level: None,
            changes,
        })
    }

    /// The published picture; `None` while there is none.
    pub fn image(&self) -> Option<Arc<ImageRecord>> {
        let whole = self.picture.whole();
        (whole.version > 0).then(|| whole.clone())
    }

    /// Whether every live broker has the published picture.
    pub fn everybody_knows(&self) -> bool {
        let (epoch, version) = (self.epoch.0, self.picture.whole().version);
        let mut brokers = self
            .nodes
            .values()
            .filter(|node| node.said.broker && !node.said.draining);
        brokers.all(|node| node.said.controller_epoch == epoch && node.said.version >= version)
    }

    /// Where a shard is led, with leader -1 while it is nowhere.
    pub fn shard(&self, shard: ShardId) -> Shard {
        let leader = match self.leaving.get(&shard) {
            Some(leaving) => Some(leaving.from),
            None => self.placement.get(&shard).copied(),
        };
        let node = leader.and_then(|leader| self.nodes.get(&leader));
        let follower = match self.leaving.contains_key(&shard) {
            true => self.placement.get(&shard),
            false => self.followers.get(&shard),
        };
        let follower = follower.filter(|follower| self.is_warm(shard, **follower));
        let address = |node: Option<&Node>| node.map_or_else(String::new, |node| node.said.internal.clone());
        Shard {
            id: shard,
            leader: leader.filter(|_| node.is_some()).unwrap_or(NodeId(-1)),
            address: address(node),
            follower: address(follower.and_then(|follower| self.nodes.get(follower))),
        }
    }

    fn is_warm(&self, shard: ShardId, node: NodeId) -> bool {
        let node = self.nodes.get(&node);
        node.is_some_and(|node| node.said.following.contains(&shard))
    }

    fn orders(&self, node: NodeId) -> Orders {
        let mut orders = Orders::default();
        for (shard, _) in self.placement.iter().filter(|(_, leader)| **leader == node) {
            match self.leaving.contains_key(shard) {
                // Until the old leader has given it up, the new one goes on following.
                true => orders.follow.insert(*shard),
                false => orders.lead.insert(*shard),
            };
        }
        let followed = self.followers.iter().filter(|(_, follower)| **follower == node);
        orders.follow.extend(followed.map(|(shard, _)| *shard));
        orders
    }

    /// True if somebody is gone.
    fn expire(&mut self, now: Instant) -> bool {
        let before = self.nodes.len();
        self.nodes.retain(|id, node| {
            let lives = node.expires > now;
            if !lives {
                tracing::warn!(node = %id, zone = node.said.zone, "node is silent and taken for dead");
            }
            lives
        });
        self.nodes.len() < before
    }

    /// Draws the consequences of whatever has changed.
    fn settle(&mut self, now: Instant) {
        self.changes += 1;
        let is_back = |address: &String| self.nodes.values().any(|node| node.said.internal == *address);
        let all_back = !self.awaited.is_empty() && self.awaited.iter().all(is_back);
        if self.listening && (all_back || now >= self.grace_ends) && !self.metadata.cluster_id.is_empty() {
            self.listening = false;
        }
        let nodes = &self.nodes;
        let lives = |node: &NodeId| nodes.get(node).is_some_and(|node| node.said.coordinator);
        self.placement.retain(|_, node| lives(node));
        self.followers.retain(|_, node| lives(node));
        self.adopt();
        if !self.listening {
            self.place(now);
            self.finish_moves(now);
        }
        self.publish();
    }

    /// A shard that is placed nowhere stays with who says that it leads (or follows) it.
    fn adopt(&mut self) {
        let shards = self.metadata.shards;
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.said.coordinator) {
            for shard in node.said.leading.iter().filter(|shard| shard.0 < shards) {
                self.placement.entry(*shard).or_insert(*id);
            }
            for shard in node.said.following.iter().filter(|shard| shard.0 < shards) {
                self.followers.entry(*shard).or_insert(*id);
            }
        }
    }

    fn place(&mut self, now: Instant) {
        let coordinators = self.nodes.iter().filter(|(_, node)| node.said.coordinator);
        let zone = |node: &Node| node.said.zone.clone();
        let mut able: BTreeMap<_, _> = coordinators
            .clone()
            .filter(|(_, node)| !node.said.draining)
            .map(|(id, node)| (*id, zone(node)))
            .collect();
        if able.is_empty() {
            // Better led by a node that is about to go than not at all.
            able = coordinators.map(|(id, node)| (*id, zone(node))).collect();
        }
        let barred: BTreeSet<_> = self
            .nodes
            .iter()
            .flat_map(|(id, node)| node.said.failing.iter().map(|shard| (*shard, *id)))
            .collect();
        let candidates = Candidates {
            nodes: &able,
            barred: &barred,
        };
        // What nobody leads any more goes to who has it in memory, before anything is evened out.
        for (shard, follower) in &self.followers {
            if candidates.admit(*shard, *follower) {
                self.placement.entry(*shard).or_insert(*follower);
            }
        }
        let mut placed = placement::place(self.metadata.shards, &self.placement, &self.followers, candidates);
        self.warm_up_ends = None;
        for (shard, node) in &mut placed {
            let Some(before) = self.placement.get(shard).copied() else {
                continue;
            };
            if before == *node || self.leaving.contains_key(shard) {
                continue;
            }
            let Some(old) = self.nodes.get(&before) else {
                continue;
            };
            let patience = match old.draining_since {
                _ if barred.contains(&(*shard, before)) => Some(now),
                Some(since) => Some(since + WARM_UP),
                None => None,
            };
            if !self.is_warm(*shard, *node) && patience.is_none_or(|until| now < until) {
                // First it catches up, as a follower.
                self.followers.insert(*shard, *node);
                *node = before;
                self.warm_up_ends = self.warm_up_ends.into_iter().chain(patience).min();
                continue;
            }
            tracing::info!(%shard, from = %before, to = %node, "moving a shard");
            let leaving = Leaving {
                from: before,
                incarnation: old.said.incarnation,
                told: false,
                deadline: now + HAND_OVER,
            };
            self.leaving.insert(*shard, leaving);
        }
        let warm = |shard, node| self.is_warm(shard, node);
        self.followers = placement::place_followers(&placed, &self.followers, candidates, warm);
        self.placement = placed;
    }

    /// The new leader starts when the old one has given the shard up, is gone, or takes too long.
    fn finish_moves(&mut self, now: Instant) {
        let (nodes, placement) = (&self.nodes, &self.placement);
        self.leaving.retain(|shard, leaving| {
            let old = nodes
                .get(&leaving.from)
                .filter(|node| node.said.incarnation == leaving.incarnation);
            let holds = old.is_some_and(|node| !leaving.told || node.said.leading.contains(shard));
            let moved_back = placement.get(shard).is_none_or(|node| *node == leaving.from);
            holds && !moved_back && now < leaving.deadline
        });
    }

    fn publish(&mut self) {
        if self.listening {
            return;
        }
        let brokers = self
            .nodes
            .values()
            .filter(|node| node.said.broker)
            .map(|node| broker(&node.said))
            .collect();
        let last = self.picture.whole();
        let bare = ImageRecord {
            version: last.version,
            controller_epoch: self.epoch.0,
            cluster_id: self.metadata.cluster_id.clone(),
            controller: last.controller,
            controller_address: last.controller_address.clone(),
            brokers,
            topics: Vec::new(),
            shards: (0..self.metadata.shards)
                .map(|shard| self.shard(ShardId(shard)))
                .collect(),
            group_shards: self.metadata.group_shards,
            feature_level: (self.metadata.feature_level > FeatureLevel::FIRST)
                .then_some(self.metadata.feature_level),
            default_partitions: last.default_partitions,
        };
        self.picture.publish(&self.metadata, bare);
    }
}

/// Whether `new` says anything of the node that `old` did not.
fn is_news(old: &HeartbeatRequest, new: &HeartbeatRequest) -> bool {
    let mut like_new = old.clone();
    (like_new.max_wait_ms, like_new.sequence) = (new.max_wait_ms, new.sequence);
    (like_new.controller_epoch, like_new.version) = (new.controller_epoch, new.version);
    like_new.reads_changes = new.reads_changes;
    like_new != *new
}

/// Whether the node has got another picture since.
fn knows_more(old: &HeartbeatRequest, new: &HeartbeatRequest) -> bool {
    (old.controller_epoch, old.version) != (new.controller_epoch, new.version)
}

/// The first release does not say.
fn supported(said: &HeartbeatRequest) -> FeatureLevels {
    said.supported.unwrap_or(FeatureLevels::FIRST_RELEASE)
}

fn broker(said: &HeartbeatRequest) -> Broker {
    Broker {
        id: said.node,
        zone: said.zone.clone(),
        host: said.host.clone(),
        port: said.port,
        zone_ports: said.zone_ports.clone(),
        internal: said.internal.clone(),
        draining: said.draining,
        serves_objects: said.serves_objects,
    }
}
