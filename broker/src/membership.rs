//! Being a member of the cluster: tell the controller that this node lives, learn the metadata image and, on a
//! coordinator, which shards to lead; and, when there is no controller, become it.
//!
//! The bucket names the controller (the owner of the log `cluster`), so no node is configured with another's address.
//! Death shows as silence on the RPC, or sooner as a connection that ends and is not made anew; nothing is written while
//! nothing changes.

use std::sync::Arc;
use std::time::Duration;

use cluster::protocol::{HeartbeatRequest, HeartbeatResponse};
use coordinator::protocol::api_key;
use env::{Env, Instant};
use kafka_wire::ResponseError;
use metalog::{LogError, MetadataLog};
use tokio::sync::watch;
use types::feature::FEATURE;

use crate::controller_host::{ControllerHost, Unsupported};
use crate::coordinator_host::CoordinatorHost;
use crate::metadata::MetadataWriter;
use crate::rpc::{Pool, RpcError};

/// How long the controller may hold a heartbeat without news.
const HOLD: Duration = Duration::from_millis(500);
/// A heartbeat without an answer for this long counts as silence.
const ANSWER: Duration = Duration::from_millis(1_500);
/// A coordinator takes over from a controller that has been silent for this long, twice as long after each change of the
/// seat, up to the longest, until it has rested for a while.
const SILENCE: Duration = Duration::from_secs(2);
const LONGEST_SILENCE: Duration = Duration::from_secs(16);
const REST: Duration = Duration::from_secs(60);
/// From one that is still opening the log, after this long.
const OPENING: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(100);
/// Before a connection that broke is made anew.
const RECONNECT: Duration = Duration::from_millis(20);

/// What the node does about leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Takes part.
    Active,
    /// Is being emptied: clients and shards move elsewhere.
    Draining,
    /// The process ends now.
    Leaving,
}

/// The roles of this node that the controller directs.
#[derive(Clone)]
pub struct Coordination {
    /// Leads shards.
    pub shards: Arc<CoordinatorHost>,
    /// Leads the cluster log when it is its turn.
    pub controller: Arc<ControllerHost>,
}

/// The heartbeat of one node.
pub struct Membership {
    env: Env,
    pool: Pool,
    cluster_log: Arc<dyn MetadataLog>,
    /// What every heartbeat says about the node; the rest is filled in each time.
    node: HeartbeatRequest,
    metadata: MetadataWriter,
    coordination: Option<Coordination>,
    stage: watch::Receiver<Stage>,
    /// Changes of what the shards of this node do; without shards there are none.
    changes: watch::Receiver<u64>,
    sequence: u64,
    /// Changes did not fit: all of the picture is needed.
    astray: bool,
    /// The last answer was a refusal: it is logged once.
    refused: bool,
}

/// Why a heartbeat got no answer from a controller.
enum Absent {
    /// The node that the bucket names is up but does not lead, or nothing listens there: nobody leads.
    Gone,
    /// No answer, or no way to it: it may be alive.
    Silent,
    /// The connection broke: a new one will tell whether it lives.
    Broken,
    /// It has taken the seat and is not ready yet.
    Opening,
    /// It answered, and does not take this node.
    Refused,
    /// The same, for good.
    Unsupported(Unsupported),
}

/// When a controller has been absent for too long. Coordinators that are too slow to answer in time would depose each
/// other for ever if every one of them was given the same short time.
struct Patience {
    /// Last sign of a controller that serves, or a change of the seat.
    heard: Instant,
    /// The last change.
    changed: Option<Instant>,
    /// Who has the seat.
    controller: Option<String>,
    silence: Duration,
}

impl Patience {
    fn new(now: Instant) -> Patience {
        Patience {
            heard: now,
            changed: None,
            controller: None,
            silence: SILENCE,
        }
    }

    fn heard(&mut self, now: Instant) {
        self.heard = now;
        let rested = |changed| now.saturating_duration_since(changed) >= REST;
        if self.changed.is_some_and(rested) {
            (self.changed, self.silence) = (None, SILENCE);
        }
    }

    /// `controller` has the seat, now or already.
    fn named(&mut self, controller: &str, now: Instant) {
        if self.controller.as_deref() == Some(controller) {
            return;
        }
        self.controller = Some(controller.to_owned());
        self.heard = now;
        if self.changed.replace(now).is_some() {
            self.silence = (self.silence * 2).min(LONGEST_SILENCE);
        }
    }

    fn is_over(&self, absent: &Absent, now: Instant) -> bool {
        let silent_for = now.saturating_duration_since(self.heard);
        match absent {
            Absent::Gone => true,
            Absent::Silent => silent_for >= self.silence,
            Absent::Opening => silent_for >= self.silence.max(OPENING),
            Absent::Broken | Absent::Refused | Absent::Unsupported(_) => false,
        }
    }
}

impl Membership {
    /// Does nothing until [`Membership::run`].
    pub fn new(
        env: Env,
        pool: Pool,
        cluster_log: Arc<dyn MetadataLog>,
        node: HeartbeatRequest,
        metadata: MetadataWriter,
        coordination: Option<Coordination>,
        stage: watch::Receiver<Stage>,
    ) -> Membership {
        let changes = match &coordination {
            Some(coordination) => coordination.shards.changes(),
            None => watch::channel(0).1,
        };
        Membership {
            env,
            pool,
            cluster_log,
            node,
            metadata,
            coordination,
            stage,
            changes,
            sequence: 0,
            astray: false,
            refused: false,
        }
    }

    /// Runs until the node has told the controller that it leaves, or the node ends. An error: the node has no place in this
    /// cluster.
    pub async fn run(mut self) -> Result<(), Unsupported> {
        let mut controller = self.find_controller().await.ok().flatten();
        let mut patience = Patience::new(self.env.instant());
        loop {
            if let Some(controller) = &controller {
                patience.named(controller, self.env.instant());
            }
            let outcome = match &controller {
                Some(address) => self.beat(address).await,
                None => Err(Absent::Gone),
            };
            match outcome {
                Ok(stage) => {
                    patience.heard(self.env.instant());
                    if stage == Some(Stage::Leaving) {
                        return Ok(());
                    }
                }
                Err(_) if *self.stage.borrow() == Stage::Leaving => return Ok(()),
                Err(Absent::Unsupported(error)) => return Err(error),
                Err(Absent::Refused) => {
                    // Another process has this node's id: a controller there is.
                    patience.heard(self.env.instant());
                    self.env.sleep(self.env.jittered(PAUSE)).await;
                }
                Err(Absent::Broken) => self.env.sleep(self.env.jittered(RECONNECT)).await,
                Err(absent) => {
                    self.env.sleep(self.env.jittered(PAUSE)).await;
                    // Who leads may be there all the same while the bucket cannot say so.
                    let Ok(named) = self.find_controller().await else {
                        continue;
                    };
                    if named == controller && patience.is_over(&absent, self.env.instant()) {
                        self.take_over().await?;
                        controller = self.find_controller().await.unwrap_or(named);
                    } else {
                        controller = named;
                    }
                }
            }
        }
    }

    /// The address of who leads the cluster log; `None`: nobody ever did.
    async fn find_controller(&self) -> Result<Option<String>, LogError> {
        let owner = self.cluster_log.owner().await;
        if let Err(error) = &owner {
            tracing::warn!(%error, "cannot read who leads the cluster log");
        }
        Ok(owner?.map(|(_, owner)| owner.address))
    }

    async fn take_over(&self) -> Result<(), Unsupported> {
        match &self.coordination {
            Some(coordination) if *self.stage.borrow() == Stage::Active => {
                coordination.controller.take_over().await
            }
            _ => Ok(()),
        }
    }

    /// One heartbeat. Gives the stage that the controller knows of now; `None` when something changed here while the
    /// controller held the request, which is then sent anew.
    async fn beat(&mut self, address: &str) -> Result<Option<Stage>, Absent> {
        let stage = *self.stage.borrow_and_update();
        let mut request = self.node.clone();
        let present = self.metadata.version();
        request.controller_epoch = present.0;
        request.version = present.1;
        request.reads_changes = Some(!self.astray);
        request.draining = stage != Stage::Active;
        request.leaving = stage == Stage::Leaving;
        request.max_wait_ms = u32::try_from(HOLD.as_millis()).unwrap_or(u32::MAX);
        self.sequence += 1;
        request.sequence = self.sequence;
        self.changes.borrow_and_update();
        if let Some(coordination) = &self.coordination {
            request.leading = coordination.shards.leading();
            request.following = coordination.shards.following();
            request.failing = coordination.shards.failing();
        }
        let deadline = self.env.instant() + ANSWER;
        let call = self
            .pool
            .call::<HeartbeatResponse>(address, api_key::HEARTBEAT, &request, deadline);
        let news = async {
            tokio::select! {
                biased;
                _ = self.stage.changed() => {}
                Ok(()) = self.changes.changed() => {}
                else => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            () = news => return Ok(None),
        };
        match answer {
            Ok(answer) if answer.error_code == 0 => {
                self.take(answer);
                self.refused = false;
                Ok(Some(stage))
            }
            Ok(answer) if answer.error_code == ResponseError::NotController.code() => Err(Absent::Gone),
            Ok(answer) if answer.error_code == ResponseError::CoordinatorLoadInProgress.code() => {
                Err(Absent::Opening)
            }
            Ok(HeartbeatResponse {
                feature_level: Some(level),
                ..
            }) => {
                let supported = self.node.supported.unwrap_or_default();
                let text =
                    format!("the cluster has finalised {FEATURE} {level}, this node supports {supported}");
                Err(Absent::Unsupported(Unsupported(text)))
            }
            Ok(answer) => {
                if !std::mem::replace(&mut self.refused, true) {
                    let error = ResponseError::try_from_code(answer.error_code);
                    tracing::warn!(?error, node = %self.node.node, "the controller refuses this node");
                }
                Err(Absent::Refused)
            }
            Err(RpcError::Refused { .. }) => Err(Absent::Gone),
            Err(RpcError::Broken { .. }) => Err(Absent::Broken),
            Err(error @ RpcError::Denied { .. }) => {
                // It lives; a node that it does not know must not take its seat.
                if !std::mem::replace(&mut self.refused, true) {
                    tracing::error!(%error, "the controller does not take this node's internal.secret_file");
                }
                Err(Absent::Refused)
            }
            Err(error @ RpcError::Unserved { .. }) => {
                if !std::mem::replace(&mut self.refused, true) {
                    tracing::error!(%error, "the controller does not understand this node");
                }
                Err(Absent::Refused)
            }
            Err(error) => {
                tracing::debug!(%error, address, "no answer from the controller");
                Err(Absent::Silent)
            }
        }
    }

    fn take(&mut self, answer: HeartbeatResponse) {
        if answer.controller_epoch < self.metadata.version().0 {
            // From a controller that has been replaced.
            return;
        }
        if let Some(image) = answer.image {
            self.metadata.update(image);
            self.astray = false;
        }
        if let Some(changes) = answer.changes
            && !self.metadata.change(&changes)
        {
            tracing::warn!(
                base = changes.base,
                "changes of another picture than this node has"
            );
            self.astray = true;
        }
        if let Some(coordination) = &self.coordination {
            coordination.shards.assign(&answer.lead, &answer.follow);
        }
    }
}

#[cfg(test)]
mod tests;
