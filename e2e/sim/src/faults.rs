//! What goes wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blob::faults::{Decision, Fault};
use blob::{BlobError, Operation};
use env::Env;

use crate::Trace;
use crate::world::World;

/// Faults of the store while `active`; always some latency.
pub(crate) fn store_plan(
    env: Env,
    active: Arc<AtomicBool>,
) -> impl Fn(Operation, &str) -> Decision + Send + Sync + 'static {
    move |operation, key| {
        let delay = Duration::from_micros(2_000 + env.random_below(40_000));
        if !active.load(Ordering::Relaxed) {
            return Decision {
                delay,
                fault: Fault::None,
            };
        }
        let error = || BlobError::Unavailable(format!("simulated failure of {operation:?} {key}"));
        let fault = match env.random_below(1_000) {
            0..10 => Fault::Fail(error()),
            10..20 => Fault::LoseReply(error()),
            20..25 => Fault::Late(Duration::from_millis(env.random_below(3_000)), error()),
            _ => Fault::None,
        };
        // Now and then a request hangs for a while.
        let slow = if env.random_below(100) == 0 {
            Duration::from_millis(env.random_below(2_000))
        } else {
            Duration::ZERO
        };
        Decision {
            delay: delay + slow,
            fault,
        }
    }
}

/// Kills, restarts and cuts until `trouble` is over, then mends everything.
pub(crate) async fn run(
    env: Env,
    world: Arc<World>,
    trace: Trace,
    trouble: Duration,
    active: Arc<AtomicBool>,
) {
    let end = env.instant() + trouble;
    while env.instant() < end {
        env.sleep(Duration::from_millis(500 + env.random_below(3_000)))
            .await;
        match env.random_below(10) {
            0..6 => {
                let name = world.random_node(&env);
                trace.add(&env, format_args!("kill {name}"));
                world.kill(&name).await;
                env.sleep(Duration::from_millis(env.random_below(4_000))).await;
                trace.add(&env, format_args!("start {name}"));
                world.start(&name).await;
            }
            6..9 => {
                let (from, to) = (world.random_node(&env), world.random_node(&env));
                if from != to {
                    trace.add(&env, format_args!("cut {from} to {to}"));
                    world.net().cut(&from, &to);
                    env.sleep(Duration::from_millis(env.random_below(5_000))).await;
                    trace.add(&env, "heal");
                    world.net().heal();
                }
            }
            _ => {}
        }
    }
    active.store(false, Ordering::Relaxed);
    world.net().heal();
    trace.add(&env, "quiet");
}
