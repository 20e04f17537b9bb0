//! The run itself, and what is made of it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context;
use env::{Env, JoinHandle};
use futures::future::join_all;
use history::{Anomaly, check_outages};

use crate::client::Client;
use crate::lab::{Lab, Topic, Trace};
use crate::workload::{self, Work};
use crate::world::{GRACE, Release, World};
use crate::{Engine, Outcome, Scenario, calm, class, faults, scale, upgrade};

/// A cluster that has not come to rest after this long, in simulated time, is stuck.
const LIMIT: Duration = Duration::from_secs(300);
/// What is promised (docs/simulation.md): so long after a fault has ended everything works again,
const RECOVERY: i64 = 20_000;
/// and no request, repeated as clients do, takes longer than this. Both in ms.
const LONGEST: i64 = 12_000;
/// Objects that are dead, or were never named, are gone this long after the last topic: they wait for a scan, go down the
/// chain of owners and wait for the grace.
const LEAKS: Duration = Duration::from_secs(90);
/// One run in so many looks for objects that are left.
const LEAK_RUNS: u64 = 4;

/// Runs `scenario` and judges it.
pub(crate) async fn run(scenario: Scenario) -> anyhow::Result<Outcome> {
    let trace = Trace::default();
    let world = World::new(scenario.seed, trace.clone())?;
    let lab = Arc::new(Lab {
        trace: trace.clone(),
        bootstrap: ["b0", "b1", "b2"].map(|broker| format!("{broker}:9092")).to_vec(),
        topics: topics(),
        ..Lab::default()
    });
    for name in world.names() {
        let name = &name;
        world.install(name, first_release(scenario.seed));
        world.start(name);
    }
    let env = world.simulation().node("test");
    let engine = Engine::of(scenario.seed);
    trace.add(
        &env,
        format_args!("metadata logs are kept by the engine {engine}"),
    );
    let ended = env.timeout(LIMIT, live(&env, &world, &lab, scenario)).await;
    for name in world.names() {
        world.kill(&name).await;
    }
    let mut anomalies = match ended {
        Ok(result) => {
            result?;
            let mut found = judge(&env, &lab);
            if let Some(calm) = calm::of(scenario.seed) {
                let outages = calm.outages(&lab, lab.quiet_since.load(Relaxed));
                found.extend(outages.into_iter().take(5));
            }
            found.extend(lab.group.lock().unconsumed(&lab.topic("grown").history.lock(), 5));
            found
        }
        // What was seen so far may say why.
        Err(_) => {
            let mut found = judge_unfinished(&env, &lab);
            let to = i64::try_from(LIMIT.as_millis())?;
            let what = "all of it: the run does not come to its end".to_owned();
            found.push(Anomaly::Unavailable { what, from: 0, to });
            found
        }
    };
    let broken = world.broken().into_iter();
    anomalies.extend(broken.map(|what| Anomaly::Broken { what }));
    Ok(Outcome {
        acknowledged: lab
            .topics
            .iter()
            .map(|topic| topic.history.lock().acked.len())
            .sum(),
        anomalies,
        trace: trace.lines(),
    })
}

/// What the nodes are at first. Nothing is upgraded in a calm run.
fn first_release(seed: u64) -> Release {
    match calm::of(seed) {
        Some(_) => Release::This,
        None => upgrade::first_release(seed),
    }
}

/// How many records are `bytes`.
fn kept(bytes: usize) -> i64 {
    bytes.div_ceil(workload::batch_bytes().max(1)) as i64
}

fn topics() -> Vec<Topic> {
    const FOREVER: (&str, &str) = ("retention.ms", "-1");
    vec![
        // Nothing is ever deleted here.
        Topic::new("events", 4, &[FOREVER]),
        // Beginnings are deleted by request.
        Topic::new(
            "short",
            2,
            &[FOREVER, ("message.timestamp.type", "LogAppendTime")],
        ),
        // Producers without idempotence.
        Topic::new("plain", 2, &[FOREVER]),
        // It grows. A group reads it.
        Topic::new("grown", 2, &[FOREVER]),
        // Three times what a clock may be off: to see that nothing goes too early.
        Topic::new("kept", 2, &[("retention.ms", "12000")]).keeping_for(12_000, faults::CLOCK as i64),
        Topic::new("bound", 2, &[FOREVER, ("retention.bytes", "600")]).keeping(kept(600)),
    ]
}

async fn live(env: &Env, world: &Arc<World>, lab: &Arc<Lab>, scenario: Scenario) -> anyhow::Result<()> {
    form(env, lab).await?;
    let calm = calm::of(scenario.seed);
    world.drizzle(calm.is_none());
    faults::set_clocks(env, world, lab);
    let mut number = 0;
    let mut node = |name: &str| {
        number += 1;
        world.client(format!("{name}{number}"))
    };
    let mut troubles = Vec::new();
    if let Some(calm) = calm {
        let node = node("trouble");
        troubles.push(node.spawn(calm.run(node.clone(), world.clone(), lab.clone())));
    }
    for _ in 0..if calm.is_none() { 2 } else { 0 } {
        let node = node("trouble");
        let run = faults::run(node.clone(), world.clone(), lab.clone(), scenario.trouble);
        troubles.push(node.spawn(run));
    }
    let mut producers: Vec<JoinHandle<()>> = Vec::new();
    for (first, topic, lives) in [
        (1_000_000, "events", 4),
        // Short lives: most batches are the first ones of a producer.
        (2_000_000, "events", 16),
        (3_000_000, "short", 4),
        (7_000_000, "grown", 4),
    ] {
        let work = Work {
            first,
            lives,
            bursts: scenario.bursts * 4 / lives,
            pause: 500,
        };
        let node = node("producer");
        producers.push(node.spawn(workload::produce_idempotent(
            node.clone(),
            lab.clone(),
            topic,
            work,
        )));
    }
    for (first, topic) in [(9_000_000, "events"), (9_500_000, "short")] {
        let node = node("producer");
        let run = workload::produce_late(node.clone(), lab.clone(), topic, first, 2);
        producers.push(node.spawn(run));
    }
    for (first, topic) in [(4_000_000, "plain"), (5_000_000, "kept"), (8_000_000, "bound")] {
        let node = node("producer");
        let (lab, count) = (lab.clone(), scenario.bursts * 15);
        producers.push(node.spawn(workload::produce_once(
            node.clone(),
            lab,
            topic,
            first,
            count,
            500,
        )));
    }
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    for (i, slow) in [false, false, true].into_iter().enumerate() {
        let node = node("consumer");
        let run = workload::consume(node.clone(), lab.clone(), format!("consumer {i}"), slow);
        clients.push(node.spawn(run));
    }
    let auditor = node("auditor");
    let topics = &["events", "short", "plain", "grown"];
    clients.push(auditor.spawn(workload::audit(auditor.clone(), lab.clone(), topics)));
    let committer = node("committer");
    let run = workload::commit_offsets(committer.clone(), lab.clone(), "events", "group".to_owned());
    clients.push(committer.spawn(run));
    let readers = node("readers");
    let run = workload::run_group(
        readers.clone(),
        world.simulation().clone(),
        lab.clone(),
        "grown",
        scenario.trouble,
    );
    clients.push(readers.spawn(run));
    let grower = node("grower");
    clients.push(grower.spawn(workload::grow(grower.clone(), lab.clone(), "grown", 5)));
    let deleter = node("deleter");
    clients.push(deleter.spawn(workload::delete_records(deleter.clone(), lab.clone(), "short")));
    let temporary = node("temporary");
    let run = workload::come_and_go(temporary.clone(), lab.clone(), "temporary".to_owned(), 6_000_000);
    clients.push(temporary.spawn(run));

    let upgrade = (first_release(scenario.seed) == Release::First).then(|| {
        let node = node("upgrader");
        node.spawn(upgrade::run(node.clone(), world.clone(), lab.clone()))
    });

    let scaling = (calm.is_none() && scale::is_scaled(scenario.seed)).then(|| {
        let node = node("scaler");
        node.spawn(scale::run(node.clone(), world.clone(), lab.clone()))
    });

    for trouble in troubles {
        trouble.await.context("the faults were ended")?;
    }
    world.net().heal();
    world.drizzle(false);
    lab.trace.add(env, "mended");
    if let Some(upgrade) = upgrade {
        upgrade.await.context("the upgrade was ended")?;
    }
    if let Some(scaling) = scaling {
        scaling.await.context("the scaling was ended")?;
    }
    for producer in producers {
        producer.await.context("a producer was ended")?;
    }
    lab.becomes_quiet(env);
    for client in clients {
        client.await.context("a client was ended")?;
    }
    // By now every dead object is deleted. Nothing but the bucket survives; one who comes later reads the same.
    env.sleep(GRACE + GRACE / 2).await;
    workload::check_retention(env, lab).await;
    for name in world.names() {
        world.kill(&name).await;
        lab.trace.add(env, format_args!("start {name} with nothing"));
        world.wipe(&name);
        world.start(&name);
    }
    workload::repeat(env, lab).await;
    workload::consume(env.clone(), lab.clone(), "late consumer".to_owned(), false).await;
    upgrade::check(env, lab).await;
    if class(scenario.seed, "leaks", LEAK_RUNS) == 0 {
        workload::check_leaks(env, world, lab, env.instant() + LEAKS).await;
    }
    Ok(())
}

/// Waits for the cluster and makes the topics.
async fn form(env: &Env, lab: &Arc<Lab>) -> anyhow::Result<()> {
    let mut client = Client::new(env.clone(), lab);
    for topic in &lab.topics {
        let id = loop {
            env.sleep(Duration::from_millis(200)).await;
            client.disconnect();
            if client
                .create(topic.name, topic.partitions(), topic.configs)
                .await
                .is_err()
            {
                continue;
            }
            if let Ok(Some((id, partitions))) = client.describe(topic.name).await
                && partitions == topic.partitions()
            {
                break id;
            }
        };
        *topic.id.lock() = id;
        lab.trace.add(env, format_args!("topic {} is {id}", topic.name));
    }
    // Every broker has to know them before a consumer asks it.
    let everywhere = lab.bootstrap.iter().map(|broker| {
        let mut client = Client::at(env.clone(), lab, broker);
        async move {
            for topic in &lab.topics {
                while !matches!(client.describe(topic.name).await, Ok(Some((_, n))) if n == topic.partitions())
                {
                    env.sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    join_all(everywhere).await;
    Ok(())
}

fn judge(env: &Env, lab: &Lab) -> Vec<Anomaly> {
    let mut found = lab.found.lock().clone();
    for topic in &lab.topics {
        let history = topic.history.lock();
        let mut wrong = history.check(5);
        wrong.extend(history.check_assigned(5));
        for anomaly in &wrong {
            lab.trace.add(env, format_args!("{}: {anomaly}", topic.name));
        }
        found.extend(wrong);
    }
    for history in lab.past.lock().iter() {
        found.extend(history.check(5));
        found.extend(history.check_assigned(5));
    }
    found.extend(lab.group.lock().check(5));
    let outages = check_outages(&lab.operations.lock(), &lab.faults.lock(), RECOVERY, LONGEST);
    found.extend(outages.into_iter().take(5));
    found
}

/// The same before consumers have come to the end: what is missing may still come.
fn judge_unfinished(env: &Env, lab: &Lab) -> Vec<Anomaly> {
    let mut found = judge(env, lab);
    let later = |anomaly: &Anomaly| {
        matches!(
            anomaly,
            Anomaly::Lost { .. } | Anomaly::WrongEnd { .. } | Anomaly::WrongTime { .. }
        )
    };
    found.retain(|anomaly| !later(anomaly));
    found
}
