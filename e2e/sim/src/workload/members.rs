//! A consumer group, and what happens to its members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use env::{Env, Instant, JoinHandle, Simulation};
use history::{Commit, Fetch, Ownership, Place, Span};

use super::PAUSE;
use crate::client::{Client, Failure};
use crate::group_requests::{Identity, UNKNOWN_MEMBER_ID};
use crate::lab::{Lab, Topic, clock};
use crate::requests::{PLENTY, Position, codes};

const GROUP: &str = "readers";
/// Between heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Longer than a Fetch takes.
const LONG: Duration = Duration::from_secs(5);
/// Most members at a time.
const MOST: usize = 4;

const ILLEGAL_GENERATION: i16 = 22;
const REBALANCE_IN_PROGRESS: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;

/// One life of a member.
struct Life {
    env: Env,
    leave: Arc<AtomicBool>,
    ended: JoinHandle<()>,
}

/// Members of a group that reads a topic: for some time they are killed, paused, sent away and joined by others. Ends when
/// all is consumed and committed.
pub(crate) async fn run_group(
    env: Env,
    simulation: Simulation,
    lab: Arc<Lab>,
    topic: &'static str,
    trouble: Duration,
) {
    let mut number = 0;
    let mut start = || {
        number += 1;
        let name = format!("member{number}");
        lab.trace.add(&env, format_args!("start {name}"));
        let env = simulation.node(&name);
        let leave: Arc<AtomicBool> = Arc::default();
        let member = Member {
            client: Client::new(env.clone(), &lab),
            env: env.clone(),
            lab: lab.clone(),
            topic,
            name,
            id: String::new(),
            leave: leave.clone(),
        };
        let ended = env.spawn(member.run());
        Life { env, leave, ended }
    };
    let observer = simulation.node("observer");
    observer.spawn(observe(observer.clone(), lab.clone(), topic));
    let end = env.instant() + trouble;
    let mut lives = vec![start(), start()];
    while env.instant() < end {
        env.sleep(Duration::from_millis(300 + env.random_below(3_500)))
            .await;
        let pick = env.random_below(lives.len() as u64) as usize;
        match env.random_below(10) {
            0..3 => {
                let life = lives.swap_remove(pick);
                lab.trace.add(&env, format_args!("kill {:?}", life.env));
                life.env.shut_down().await;
            }
            3..6 => {
                // Often for longer than a session lasts.
                let life = &lives[pick];
                lab.trace.add(&env, format_args!("pause {:?}", life.env));
                life.env.pause();
                env.sleep(Duration::from_millis(env.random_below(10_000))).await;
                lab.trace.add(&env, format_args!("resume {:?}", life.env));
                life.env.resume();
            }
            6..8 => {
                let life = lives.swap_remove(pick);
                lab.trace.add(&env, format_args!("{:?} is to leave", life.env));
                life.leave.store(true, Relaxed);
            }
            _ if lives.len() < MOST => lives.push(start()),
            _ => {}
        }
        while lives.len() < 2 {
            lives.push(start());
        }
    }
    while !lab.is_quiet() {
        env.sleep(PAUSE).await;
    }
    let from = clock(&env);
    at_end(&env, &lab, lab.topic(topic)).await;
    lab.took(&env, format!("the group {GROUP} reads to the end"), from);
    for life in lives {
        life.leave.store(true, Relaxed);
        let _ = life.ended.await;
    }
}

/// Asks again and again where the group is.
async fn observe(env: Env, lab: Arc<Lab>, topic: &'static str) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), &lab);
    while !lab.is_quiet() {
        let partition = topic.random_partition(&env);
        if let Err(failure) = committed(&mut client, &lab, topic, partition).await {
            lab.trace.add(&env, format_args!("where the group is: {failure}"));
        }
        client.disconnect();
        env.sleep(Duration::from_millis(env.random_below(500))).await;
    }
}

/// Waits until the group has committed the ends of all partitions.
async fn at_end(env: &Env, lab: &Lab, topic: &Topic) {
    let mut client = Client::new(env.clone(), lab);
    loop {
        match is_at_end(&mut client, lab, topic).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(failure) => {
                lab.trace.add(env, format_args!("where the group is: {failure}"));
                client.disconnect();
            }
        }
        env.sleep(PAUSE * 5).await;
    }
}

async fn is_at_end(client: &mut Client, lab: &Lab, topic: &Topic) -> Result<bool, Failure> {
    let ends = client.offsets(topic.name, topic.partitions(), -1).await?;
    for (partition, end) in (0..).zip(ends) {
        if end > 0 && committed(client, lab, topic, partition).await? < end {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn committed(client: &mut Client, lab: &Lab, topic: &Topic, partition: i32) -> Result<i64, Failure> {
    let env = client.env.clone();
    let from = clock(&env);
    let offset = client.committed_offset(GROUP, topic.name, partition).await?;
    let to = clock(&env);
    let line = format!("{GROUP} is at {offset} of {}/{partition}", topic.name);
    lab.trace.add(&env, line);
    lab.group.lock().fetches.push(Fetch {
        partition,
        offset,
        span: Span { from, to },
    });
    Ok(offset)
}

/// A consumer that the group gives partitions to.
struct Member {
    env: Env,
    lab: Arc<Lab>,
    topic: &'static str,
    client: Client,
    name: String,
    /// Empty: it has none yet.
    id: String,
    leave: Arc<AtomicBool>,
}

/// What it is in a generation.
struct Part {
    me: Identity,
    /// The leader: of how many partitions it knew.
    planned: Option<i32>,
    /// Where it is in its partitions, and what it has committed; `None`: not asked yet.
    positions: BTreeMap<i32, Option<(i64, i64)>>,
    heartbeat: Instant,
}

impl Member {
    async fn run(mut self) {
        while !self.leave.load(Relaxed) {
            match self.join().await {
                Ok(Some(part)) => self.take_part(part).await,
                Ok(None) => {}
                Err(failure) => self.failed(&failure).await,
            }
        }
        match self.client.leave_group(GROUP, &self.id).await {
            Ok(()) => self.say("has left"),
            // Its session will end.
            Err(failure) => self.say(&failure),
        }
    }

    fn say(&self, line: &str) {
        self.lab
            .trace
            .add(&self.env, format_args!("{}: {line}", self.name));
    }

    async fn failed(&mut self, failure: &str) {
        self.say(failure);
        self.client.disconnect();
        self.env.sleep(PAUSE).await;
    }

    /// Whether an error code tells the member to join again.
    fn must_join(&mut self, code: i16) -> bool {
        match code {
            UNKNOWN_MEMBER_ID => self.id.clear(),
            ILLEGAL_GENERATION | REBALANCE_IN_PROGRESS => {}
            _ => return false,
        }
        true
    }

    /// `None`: it has to be tried again.
    async fn join(&mut self) -> Result<Option<Part>, Failure> {
        let from = clock(&self.env);
        let joined = self.client.join_group(GROUP, &self.id).await?;
        let (generation, members) = match joined.result {
            Ok(found) => found,
            Err(MEMBER_ID_REQUIRED) => {
                self.id = joined.member;
                return Ok(None);
            }
            Err(code) if code != ILLEGAL_GENERATION && self.must_join(code) => return Ok(None),
            Err(code) => return Err(self.client.refused("JoinGroup", code, codes::COORDINATOR)),
        };
        self.id = joined.member;
        let me = Identity {
            generation,
            member: self.id.clone(),
        };
        let partitions = self.lab.topic(self.topic).partitions();
        let planned = members.is_some().then_some(partitions);
        let plan = deal(members.unwrap_or_default(), partitions);
        if planned.is_some() {
            let given = plan.iter().cloned().collect();
            self.lab.group.lock().given.push((generation, given));
        }
        self.say(&format!("joined {generation}, gives {plan:?}"));
        let partitions = match self.client.sync_group(GROUP, &me, &plan).await? {
            Ok(partitions) => partitions,
            Err(code) if self.must_join(code) => return Ok(None),
            Err(code) => return Err(self.client.refused("SyncGroup", code, codes::MEMBER)),
        };
        let to = clock(&self.env);
        self.say(&format!("owns {partitions:?} in {generation}"));
        self.lab.group.lock().ownerships.push(Ownership {
            member: me.member.clone(),
            generation,
            leads: planned.is_some(),
            partitions: partitions.clone(),
            span: Span { from, to },
        });
        Ok(Some(Part {
            me,
            planned,
            positions: partitions
                .into_iter()
                .map(|partition| (partition, None))
                .collect(),
            heartbeat: self.env.instant() + HEARTBEAT,
        }))
    }

    /// Consumes what it owns until the generation is over for it.
    async fn take_part(&mut self, mut part: Part) {
        loop {
            match self.step(&mut part).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => self.failed(&failure).await,
            }
        }
    }

    /// False: it has to join again, or to leave.
    async fn step(&mut self, part: &mut Part) -> Result<bool, Failure> {
        let topic = self.lab.clone();
        let topic = topic.topic(self.topic);
        let has_grown = part.planned.is_some_and(|planned| planned < topic.partitions());
        if has_grown || self.leave.load(Relaxed) {
            self.commit(part).await?;
            return Ok(false);
        }
        if self.env.instant() >= part.heartbeat {
            match self.client.heartbeat(GROUP, &part.me).await? {
                Ok(()) => part.heartbeat = self.env.instant() + HEARTBEAT,
                Err(REBALANCE_IN_PROGRESS) => {
                    self.say("there is a rebalance");
                    self.commit(part).await?;
                    return Ok(false);
                }
                Err(code) if self.must_join(code) => return Ok(false),
                Err(code) => return Err(self.client.refused("Heartbeat", code, codes::MEMBER)),
            }
        }
        for (partition, position) in &mut part.positions {
            if position.is_none() {
                let offset = committed(&mut self.client, &self.lab, topic, *partition).await?;
                *position = Some((offset.max(0), offset));
            }
        }
        let asked = self.env.instant();
        if !self.read(part, topic).await? {
            self.env.sleep(PAUSE).await;
        }
        // Who has slept finds that its next commit is long due, and nobody has told it yet that it is a member no more.
        let has_slept = self.env.instant() >= asked + LONG;
        Ok(!has_slept && self.env.random_below(3) > 0 || self.commit(part).await?)
    }

    /// Takes what there is. False: nothing.
    async fn read(&mut self, part: &mut Part, topic: &Topic) -> Result<bool, Failure> {
        let id = *topic.id.lock();
        let positions = part.positions.iter().filter_map(|(partition, position)| {
            position.map(|(offset, _)| Position {
                topic: id,
                partition: *partition,
                offset,
            })
        });
        let positions: Vec<Position> = positions.collect();
        if positions.is_empty() {
            return Ok(false);
        }
        let mut some = false;
        for fetched in self.client.fetch(&positions, PLENTY).await? {
            let partition = fetched.partition;
            if fetched.error == codes::OUT_OF_RANGE {
                let what = format!(
                    "what {GROUP} has committed of {}/{partition} is not there",
                    topic.name
                );
                self.lab.broken(&self.env, what);
            }
            if fetched.error != 0 {
                return Err(format!("{}/{partition}: error {}", topic.name, fetched.error));
            }
            if let Some(why) = fetched.corrupt {
                self.lab.broken(
                    &self.env,
                    format!("{}/{partition} is served corrupt: {why}", topic.name),
                );
            }
            for record in fetched.records {
                let place = Place {
                    partition,
                    offset: record.offset,
                };
                self.say(&format!(
                    "got {} at {}/{partition}/{}",
                    record.value, topic.name, record.offset
                ));
                self.lab.group.lock().reads.insert((record.value, place));
                if let Some(Some((next, _))) = part.positions.get_mut(&partition) {
                    *next = record.offset + 1;
                }
                some = true;
            }
        }
        Ok(some)
    }

    /// Commits where it is. False: it has to join again.
    async fn commit(&mut self, part: &mut Part) -> Result<bool, Failure> {
        for (partition, position) in &mut part.positions {
            let Some((next, committed)) = position.as_mut().filter(|(next, committed)| next > committed)
            else {
                continue;
            };
            // A member that starts from nothing has nothing to commit.
            if *next == 0 {
                continue;
            }
            let index = {
                let mut group = self.lab.group.lock();
                group.commits.push(Commit {
                    partition: *partition,
                    offset: *next,
                    generation: part.me.generation,
                    sent: clock(&self.env),
                    acked: None,
                });
                group.commits.len() - 1
            };
            let answer = self
                .client
                .commit_offset(GROUP, &part.me, self.topic, *partition, *next)
                .await?;
            match answer {
                Ok(()) => {
                    let now = clock(&self.env);
                    self.lab.group.lock().commits[index].acked = Some(now);
                    self.say(&format!("committed {next} of {partition}"));
                    *committed = *next;
                }
                Err(code) => {
                    self.say(&format!("commit of {next} of {partition}: error {code}"));
                    return match self.must_join(code) {
                        true => Ok(false),
                        // A broker that has not heard of a new partition yet.
                        false if code == codes::UNKNOWN_TOPIC => Err("no such partition yet".to_owned()),
                        false => Err(self.client.refused("OffsetCommit", code, codes::COORDINATOR)),
                    };
                }
            }
        }
        Ok(true)
    }
}

/// Deals partitions out to members.
fn deal(members: Vec<String>, partitions: i32) -> Vec<(String, Vec<i32>)> {
    let mut plan: Vec<(String, Vec<i32>)> = members.into_iter().map(|member| (member, Vec::new())).collect();
    let count = plan.len().max(1);
    for partition in 0..partitions {
        if let Some((_, owned)) = plan.get_mut(partition as usize % count) {
            owned.push(partition);
        }
    }
    plan
}
