//! Runs in which little goes wrong: one node at a time is killed, or told to stop, while others are ready to stand in for it.
//! Nothing is excused there, so that what is promised of a take-over can be looked at, to the millisecond.

use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::{Anomaly, check_outages};

use crate::class;
use crate::lab::Lab;
use crate::world::World;

/// By then everybody is ready to stand in for everybody, and no follower is behind.
const WARM: Duration = Duration::from_secs(7);
/// How long a node is away.
const AWAY: Duration = Duration::from_secs(4);
const ROUNDS: u64 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// What happens to the nodes of a calm run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calm {
    /// SIGKILL. Others have to notice.
    Kills,
    /// SIGTERM. They are told.
    Stops,
}

/// That of a seed's run; most are not calm.
pub(crate) fn of(seed: u64) -> Option<Calm> {
    match class(seed, "calm", 12) {
        0 => Some(Calm::Kills),
        1 => Some(Calm::Stops),
        _ => None,
    }
}

impl Calm {
    /// No request, repeated as clients do, takes longer than this, in ms.
    fn longest(self) -> i64 {
        match self {
            Calm::Kills => 3_000,
            Calm::Stops => 1_500,
        }
    }

    pub(crate) async fn run(self, env: Env, world: Arc<World>, lab: Arc<Lab>) {
        for _ in 0..ROUNDS {
            env.sleep(WARM).await;
            let node = world.random_node(&env);
            match self {
                Calm::Kills => {
                    lab.trace.add(&env, format_args!("kill {node}"));
                    world.kill(&node).await;
                }
                Calm::Stops => {
                    lab.trace.add(&env, format_args!("stop {node}"));
                    world.stop(&node).await;
                }
            }
            env.sleep(AWAY).await;
            lab.trace.add(&env, format_args!("start {node}"));
            world.start(&node);
            while !world.is_ready(&node) {
                env.sleep(PAUSE).await;
            }
        }
        env.sleep(WARM).await;
    }

    /// What took too long before `quiet`; then all nodes are made to start from nothing.
    pub(crate) fn outages(self, lab: &Lab, quiet: i64) -> Vec<Anomaly> {
        let mut operations = lab.operations.lock().clone();
        operations.retain(|operation| operation.span.to <= quiet);
        check_outages(&operations, &[], 0, self.longest())
    }
}
