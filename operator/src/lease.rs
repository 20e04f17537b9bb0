//! Leader election over a `coordination.k8s.io` Lease.
//!
//! One replica works, the others wait. A holder that cannot renew for [`RENEW_DEADLINE`] stops working before any
//! other replica may take over, which is [`LEASE_DURATION`] after the last change *it* saw on *its* clock: the clocks
//! of two nodes are never compared. What a deposed leader still has in flight is harmless, since every write either
//! says the same as the new leader's or carries a precondition.

use std::time::Duration;

use env::{Env, Instant};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};

/// Name of the Lease object.
pub const LEASE_NAME: &str = "diskless-operator";
/// A lease that nobody renewed for this long is free.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew for this long gives up.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between attempts.
const RETRY: Duration = Duration::from_secs(2);

/// This replica's side of the election.
#[derive(Debug, Clone)]
pub struct Election {
    api: Api<Lease>,
    identity: String,
    env: Env,
}

/// The record of another holder, and since when it has not changed.
struct Seen {
    resource_version: Option<String>,
    since: Instant,
}

impl Election {
    /// An election in the namespace of `api` under the name `identity`.
    pub fn new(api: Api<Lease>, identity: String, env: Env) -> Self {
        Self { api, identity, env }
    }

    /// Waits until this replica holds the lease.
    pub async fn acquire(&self) {
        let mut seen = Seen {
            resource_version: None,
            since: self.env.instant(),
        };
        loop {
            match self.try_acquire(&mut seen).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "cannot take the leader lease"),
            }
            self.env.sleep(RETRY).await;
        }
    }

    /// Keeps the lease; returns when it is lost.
    pub async fn hold(&self) {
        let mut renewed = self.env.instant();
        while renewed.elapsed() < RENEW_DEADLINE {
            self.env.sleep(RETRY).await;
            let attempt = self.env.timeout(RENEW_DEADLINE / 2, self.renew()).await;
            match attempt {
                Ok(Ok(true)) => renewed = self.env.instant(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "cannot renew the leader lease"),
                Err(elapsed) => tracing::warn!(%elapsed, "cannot renew the leader lease"),
            }
        }
    }

    /// Frees the lease, so that the next replica need not wait it out.
    pub async fn release(&self) {
        let freed = async {
            let Some(mut lease) = self.api.get_opt(LEASE_NAME).await? else {
                return Ok(());
            };
            if holder(&lease) != Some(self.identity.as_str()) {
                return Ok(());
            }
            lease.spec.get_or_insert_default().holder_identity = None;
            self.api
                .replace(LEASE_NAME, &PostParams::default(), &lease)
                .await
                .map(drop)
        };
        if let Err(error) = freed.await {
            let error: kube::Error = error;
            tracing::warn!(%error, "cannot free the leader lease");
        }
    }

    async fn try_acquire(&self, seen: &mut Seen) -> kube::Result<bool> {
        let Some(lease) = self.api.get_opt(LEASE_NAME).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEASE_NAME.to_owned()),
                    ..Default::default()
                },
                spec: Some(self.spec(0)),
            };
            return won(self.api.create(&PostParams::default(), &lease).await);
        };
        let free = match holder(&lease) {
            None => true,
            Some(holder) if holder == self.identity => true,
            Some(_) => {
                if seen.resource_version != lease.metadata.resource_version {
                    seen.resource_version.clone_from(&lease.metadata.resource_version);
                    seen.since = self.env.instant();
                }
                seen.since.elapsed() >= LEASE_DURATION
            }
        };
        if free { self.take(lease).await } else { Ok(false) }
    }

    /// Writes our name over the record just read; the server refuses when it has changed since.
    async fn take(&self, mut lease: Lease) -> kube::Result<bool> {
        let transitions = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_transitions)
            .unwrap_or(0);
        lease.spec = Some(self.spec(transitions.saturating_add(1)));
        won(self.api.replace(LEASE_NAME, &PostParams::default(), &lease).await)
    }

    async fn renew(&self) -> kube::Result<bool> {
        let mut lease = self.api.get(LEASE_NAME).await?;
        if holder(&lease) != Some(self.identity.as_str()) {
            return Ok(false);
        }
        lease.spec.get_or_insert_default().renew_time = Some(self.now());
        won(self.api.replace(LEASE_NAME, &PostParams::default(), &lease).await)
    }

    fn spec(&self, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: Some(self.now()),
            renew_time: Some(self.now()),
            lease_transitions: Some(transitions),
            ..Default::default()
        }
    }

    fn now(&self) -> MicroTime {
        MicroTime(Timestamp::from_millisecond(self.env.now().0).unwrap_or_default())
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease
        .spec
        .as_ref()?
        .holder_identity
        .as_deref()
        .filter(|holder| !holder.is_empty())
}

/// A conflict means that another replica was faster, which is no error.
fn won(result: kube::Result<Lease>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
