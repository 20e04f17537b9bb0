//! The cluster grows and shrinks. In some runs it gets another partition of `__diskless_metadata`, as it does when nodes
//! start with a new configuration, and a third coordinator for a while.

use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::Span;

use crate::class;
use crate::lab::{Lab, clock};
use crate::world::World;

/// The coordinator that comes and goes.
pub(crate) const SPARE: &str = "c2";
/// One run in so many; some of them are upgraded, too.
const RUNS: u64 = 3;

pub(crate) fn is_scaled(seed: u64) -> bool {
    class(seed, "scale", RUNS) == 0
}

/// Adds, and takes away again.
pub(crate) async fn run(env: Env, world: Arc<World>, lab: Arc<Lab>) {
    let a_while = |longest: u64| Duration::from_millis(env.random_below(longest));
    env.sleep(a_while(6_000)).await;
    world.want_shards(4);
    lab.trace
        .add(&env, format_args!("one more metadata partition; {SPARE} joins"));
    world.add(SPARE);
    for name in world.names() {
        if !name.starts_with('c') || name == SPARE {
            continue;
        }
        while !world.take(&name) {
            env.sleep(Duration::from_millis(100)).await;
        }
        let from = clock(&env);
        lab.trace
            .add(&env, format_args!("{name} starts with a new configuration"));
        world.stop(&name).await;
        world.start(&name);
        world.give_back(&name);
        let to = clock(&env);
        lab.faults.lock().push(Span { from, to });
        env.sleep(a_while(3_000)).await;
    }
    env.sleep(a_while(8_000)).await;
    while !world.take(SPARE) {
        env.sleep(Duration::from_millis(100)).await;
    }
    let from = clock(&env);
    lab.trace.add(&env, format_args!("{SPARE} leaves for good"));
    world.remove(SPARE).await;
    world.give_back(SPARE);
    let to = clock(&env);
    lab.faults.lock().push(Span { from, to });
}
