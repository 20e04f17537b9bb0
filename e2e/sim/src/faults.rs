//! What goes wrong.

use std::sync::Arc;
use std::time::Duration;

use blob::Operation;
use env::Env;
use history::Span;

use crate::lab::{Lab, clock};
use crate::store::{BUCKET, OPERATIONS, Storm};
use crate::world::World;

/// Most ms that a wall clock is off: less than the grace periods allow for.
const CLOCK: u64 = 4_000;

/// Breaks one thing after the other until `end`, and mends each again. Several of these run side by side.
pub(crate) async fn run(env: Env, world: Arc<World>, lab: Arc<Lab>, trouble: Duration) {
    let end = env.instant() + trouble;
    while env.instant() < end {
        env.sleep(Duration::from_millis(200 + env.random_below(2_500)))
            .await;
        let from = clock(&env);
        one(&env, &world, &lab).await;
        let to = clock(&env);
        lab.faults.lock().push(Span { from, to });
    }
}

/// Clocks are not right from the beginning.
pub(crate) fn set_clocks(env: &Env, world: &World, lab: &Lab) {
    for node in world.names() {
        set_clock(env, world, lab, &node);
    }
}

fn set_clock(env: &Env, world: &World, lab: &Lab, node: &str) {
    let offset = i64::try_from(env.random_below(2 * CLOCK)).unwrap_or(0) - CLOCK as i64;
    lab.trace
        .add(env, format_args!("the clock of {node} is {offset} ms off"));
    world.net().set_clock(node, offset);
}

async fn one(env: &Env, world: &World, lab: &Lab) {
    let net = world.net();
    let a_while = |longest: u64| Duration::from_millis(200 + env.random_below(longest));
    let say = |line: std::fmt::Arguments<'_>| lab.trace.add(env, line);
    match env.random_below(120) {
        // SIGKILL, or an orderly stop; then a new life, sometimes long after.
        0..32 => {
            let Some(node) = world.take_random(env) else {
                return;
            };
            if env.random_below(3) == 0 {
                say(format_args!("stop {node}"));
                world.stop(&node).await;
            } else {
                say(format_args!("kill {node}"));
                world.kill(&node).await;
            }
            let longest = if env.random_below(6) == 0 { 12_000 } else { 3_500 };
            env.sleep(a_while(longest)).await;
            say(format_args!("start {node}"));
            world.start(&node);
            world.give_back(&node);
        }
        // SIGSTOP.
        32..50 => {
            let Some(node) = world.take_random(env) else {
                return;
            };
            say(format_args!("pause {node}"));
            world.pause(&node, true);
            env.sleep(a_while(6_000)).await;
            say(format_args!("resume {node}"));
            world.pause(&node, false);
            world.give_back(&node);
        }
        // One direction between two nodes, or between a node and the store.
        50..64 => {
            let from = world.random_node(env);
            let to = match env.random_below(3) {
                0 => BUCKET.to_owned(),
                _ => world.random_node(env),
            };
            if from == to {
                return;
            }
            let (from, to) = if env.random_below(2) == 0 {
                (from, to)
            } else {
                (to, from)
            };
            say(format_args!("cut {from} to {to}"));
            net.cut(&from, &to);
            env.sleep(a_while(5_000)).await;
            say(format_args!("mend {from} to {to}"));
            net.mend(&from, &to);
        }
        // The nodes fall into two groups that do not see each other; clients and the store see both.
        64..80 => {
            let nodes = world.names();
            let (left, right): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|_| env.random_below(2) == 0);
            let pairs = || left.iter().flat_map(|a| right.iter().map(move |b| (a, b)));
            say(format_args!("split {left:?} from {right:?}"));
            for (a, b) in pairs() {
                net.cut(a, b);
                net.cut(b, a);
            }
            env.sleep(a_while(7_000)).await;
            say(format_args!("join {left:?} and {right:?}"));
            for (a, b) in pairs() {
                net.mend(a, b);
                net.mend(b, a);
            }
        }
        80..86 => {
            let node = world.random_node(env);
            set_clock(env, world, lab, &node);
        }
        // All its connections end, to nodes and to clients; what they have asked for goes on.
        86..98 => {
            let node = world.random_node(env);
            say(format_args!("reset {node}"));
            net.reset(&node);
        }
        // A client does not hear a broker, or is not heard.
        98..104 => {
            let broker = &lab.bootstrap[env.random_below(lab.bootstrap.len() as u64) as usize];
            let broker = broker.trim_end_matches(":9092");
            let clients = world.clients();
            let client = &clients[env.random_below(clients.len() as u64) as usize];
            let (from, to) = match env.random_below(2) {
                0 => (broker, client.as_str()),
                _ => (client.as_str(), broker),
            };
            say(format_args!("cut {from} to {to}"));
            net.cut(from, to);
            env.sleep(a_while(10_000)).await;
            say(format_args!("mend {from} to {to}"));
            net.mend(from, to);
        }
        // Nobody is left but the store.
        104..106 => {
            let nodes = world.names();
            let nodes: Vec<String> = nodes.into_iter().filter(|node| world.take(node)).collect();
            say(format_args!("kill {nodes:?}"));
            for node in &nodes {
                world.kill(node).await;
            }
            env.sleep(a_while(1_000)).await;
            for node in &nodes {
                say(format_args!("start {node}"));
                world.start(node);
                world.give_back(node);
            }
        }
        // Who leads stands still while who follows is behind.
        106..110 => {
            let (one, other) = match env.random_below(2) {
                0 => ("c0", "c1"),
                _ => ("c1", "c0"),
            };
            if !world.take(one) {
                return;
            }
            say(format_args!("cut {BUCKET} to {other}"));
            net.cut(BUCKET, other);
            env.sleep(a_while(1_500)).await;
            say(format_args!("pause {one}"));
            world.pause(one, true);
            env.sleep(a_while(5_000)).await;
            say(format_args!("resume {one}, mend {BUCKET} to {other}"));
            net.mend(BUCKET, other);
            world.pause(one, false);
            world.give_back(one);
        }
        // One operation of the store fails, or crawls.
        _ => {
            let operation = match env.random_below(2) {
                0 => Operation::Put,
                _ => OPERATIONS[env.random_below(OPERATIONS.len() as u64) as usize],
            };
            // A produce request is given up after 5 s.
            let long = a_while(9_000);
            let storm = Storm {
                until: env.instant() + long,
                failing: [0, 50, 100][env.random_below(3) as usize],
                slow: Duration::from_millis(env.random_below(2_500)),
            };
            say(format_args!(
                "{operation:?} suffers {} %, {:?} for {long:?}",
                storm.failing, storm.slow
            ));
            world.bucket().storm(operation, storm);
            env.sleep(long).await;
        }
    }
}
