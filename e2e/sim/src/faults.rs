//! What goes wrong.

use std::sync::Arc;
use std::time::Duration;

use blob::Operation;
use env::Env;
use history::Span;

use crate::lab::{Lab, clock};
use crate::postgres::{Database, HOSTS, Kind};
use crate::store::{BUCKET, OPERATIONS, Storm};
use crate::world::World;

/// Most ms that a wall clock is off: less than the grace periods allow for.
pub(crate) const CLOCK: u64 = 4_000;
/// What a fault has that is about a process of the database.
const DATABASE: &str = "database";

/// Breaks one thing after the other until `end`, and mends each again. Several of these run side by side.
pub(crate) async fn run(env: Env, world: Arc<World>, lab: Arc<Lab>, trouble: Duration) {
    let end = env.instant() + trouble;
    while env.instant() < end {
        env.sleep(Duration::from_millis(200 + env.random_below(2_500)))
            .await;
        let from = clock(&env);
        if one(&env, &world, &lab).await {
            let to = clock(&env);
            lab.faults.lock().push(Span { from, to });
        }
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

/// False: nothing was broken.
async fn one(env: &Env, world: &World, lab: &Lab) -> bool {
    if let Some(database) = world.database()
        && env.random_below(3) == 0
    {
        return one_of_the_database(env, world, database, lab).await;
    }
    let net = world.net();
    let a_while = |longest: u64| Duration::from_millis(200 + env.random_below(longest));
    let say = |line: std::fmt::Arguments<'_>| lab.trace.add(env, line);
    match env.random_below(120) {
        // SIGKILL, or an orderly stop; then a new life, sometimes long after.
        0..32 => {
            let Some(node) = world.take_random(env) else {
                return false;
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
                return false;
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
                return false;
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
            if left.is_empty() || right.is_empty() {
                return false;
            }
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
            // No excuse for anything.
            return false;
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
                return false;
            }
            let stores = world.log_hosts();
            say(format_args!("cut {stores:?} to {other}"));
            stores.iter().for_each(|store| net.cut(store, other));
            env.sleep(a_while(1_500)).await;
            say(format_args!("pause {one}"));
            world.pause(one, true);
            // Often for longer than brokers keep what a leader told them that has become silent.
            env.sleep(a_while(12_000)).await;
            say(format_args!("resume {one}, mend {stores:?} to {other}"));
            stores.iter().for_each(|store| net.mend(store, other));
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
            let storm = storm(env, long, 2_500);
            say(format_args!(
                "{operation:?} suffers {} %, {:?} for {long:?}",
                storm.failing, storm.slow
            ));
            world.bucket().storm(operation, storm);
            env.sleep(long).await;
        }
    }
    true
}

/// The same for the database that keeps the metadata logs.
async fn one_of_the_database(env: &Env, world: &World, database: &Database, lab: &Lab) -> bool {
    let net = world.net();
    let a_while = |longest: u64| Duration::from_millis(200 + env.random_below(longest));
    let say = |line: std::fmt::Arguments<'_>| lab.trace.add(env, line);
    match env.random_below(100) {
        // SIGKILL. Sometimes the standby takes over, and the old primary comes back as one.
        0..30 => {
            let Some(primary) = take(world, database) else {
                return false;
            };
            say(format_args!("kill {primary}"));
            database.kill(primary).await;
            if env.random_below(2) == 0 {
                env.sleep(a_while(2_000)).await;
                let promoted = database.promote();
                say(format_args!("promote {promoted}"));
            }
            env.sleep(a_while(3_500)).await;
            say(format_args!("start {primary}"));
            database.start(primary);
            world.give_back(DATABASE);
        }
        // SIGSTOP, sometimes for longer than anybody waits for an answer.
        30..45 => {
            let Some(primary) = take(world, database) else {
                return false;
            };
            say(format_args!("pause {primary}"));
            database.pause(primary, true);
            let longest = if env.random_below(4) == 0 { 14_000 } else { 4_000 };
            env.sleep(a_while(longest)).await;
            say(format_args!("resume {primary}"));
            database.pause(primary, false);
            world.give_back(DATABASE);
        }
        // Every connection is hung up, perhaps after COMMIT.
        45..60 => {
            let primary = database.primary();
            say(format_args!("reset {primary}"));
            net.reset(primary);
        }
        // A node does not hear it, or is not heard.
        60..80 => {
            let node = world.random_node(env);
            let deaf = env.random_below(2) == 0;
            let way = |host| match deaf {
                true => (host, node.as_str()),
                false => (node.as_str(), host),
            };
            say(format_args!("cut {:?}", HOSTS.map(way)));
            HOSTS
                .map(way)
                .into_iter()
                .for_each(|(from, to)| net.cut(from, to));
            env.sleep(a_while(7_000)).await;
            say(format_args!("mend {:?}", HOSTS.map(way)));
            HOSTS
                .map(way)
                .into_iter()
                .for_each(|(from, to)| net.mend(from, to));
        }
        // What reads or what writes fails, or crawls.
        _ => {
            let kind = [Kind::Read, Kind::Write][env.random_below(2) as usize];
            let long = a_while(9_000);
            let storm = storm(env, long, 1_000);
            say(format_args!(
                "{kind:?}s of the database suffer {} %, {:?} for {long:?}",
                storm.failing, storm.slow
            ));
            database.storm(kind, storm);
            env.sleep(long).await;
        }
    }
    true
}

/// The primary, for one fault alone; `None`: another fault has it.
fn take(world: &World, database: &Database) -> Option<&'static str> {
    world.take(DATABASE).then(|| database.primary())
}

/// A random storm that begins now. What crawls takes up to `slowest` ms.
fn storm(env: &Env, long: Duration, slowest: u64) -> Storm {
    Storm {
        until: env.instant() + long,
        failing: [0, 50, 100][env.random_below(3) as usize],
        slow: Duration::from_millis(env.random_below(slowest)),
    }
}
