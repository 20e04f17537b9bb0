//! What goes wrong, in which order: all of it follows from the seed.

use std::time::{Duration, Instant};

use anyhow::bail;
use e2e::netns::{Network, Place};
use e2e::node::{Cluster, Node};
use e2e::postgres::Postgres;
use e2e::s3_proxy::{Fault as StoreFault, Proxy, Rule, Verb};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::run::{UNAVAILABLE, World};

/// How far a clock may be off, seconds: less than what S3 takes for a forgery (15 minutes), and less than the grace before
/// objects are deleted (10 minutes).
const CLOCK_OFF: i64 = 300;

/// One thing that happens, to nodes by their place in the list of all nodes (brokers first).
enum Fault {
    Kill(usize),
    Pause(usize),
    Stop(usize),
    /// Its wall clock is off by so many seconds.
    Clock(usize, i64),
    Store(&'static str, Vec<Rule>),
    Isolate(usize),
    /// Neither hears the other.
    Cut(usize, usize),
    /// The second does not hear the first.
    OneWay(usize, usize),
    CutStore(usize),
    KillDatabase,
    PauseDatabase,
    /// Every connection of a node to it ends, perhaps after its COMMIT.
    HangUp,
}

pub struct Nemesis<'a> {
    pub cluster: &'a mut Cluster,
    pub proxy: &'a Proxy,
    pub network: Option<&'a Network>,
    pub database: Option<&'a mut Postgres>,
    pub journal: Vec<String>,
    random: StdRng,
    start: Instant,
}

impl<'a> Nemesis<'a> {
    pub fn new(
        seed: u64,
        cluster: &'a mut Cluster,
        proxy: &'a Proxy,
        network: Option<&'a Network>,
        database: Option<&'a mut Postgres>,
    ) -> Nemesis<'a> {
        Nemesis {
            cluster,
            proxy,
            network,
            database,
            journal: Vec::new(),
            random: StdRng::seed_from_u64(seed),
            start: Instant::now(),
        }
    }

    /// So many steps: a fault, now and then two at once, some seconds, and all is well again for a moment.
    pub fn run(&mut self, world: World, steps: u64) -> anyhow::Result<()> {
        for _ in 0..steps {
            let mut faults = vec![match world {
                World::Loopback => self.process_fault(),
                World::Namespaces => self.network_fault(),
                World::Database => self.database_fault(),
            }];
            if self.random.random_ratio(1, 3) {
                faults.push(match world {
                    World::Loopback => self.store_fault(),
                    World::Namespaces | World::Database => self.process_fault(),
                });
            } else if world == World::Loopback && self.random.random_ratio(1, 2) {
                faults = vec![self.store_fault()];
            }
            let names: Vec<String> = faults.iter().map(|fault| self.describe(fault)).collect();
            self.note(names.join(", "));
            for fault in &faults {
                self.begin(fault)?;
            }
            let length = self.random.random_range(1_500..5_000);
            std::thread::sleep(Duration::from_millis(length));
            for fault in &faults {
                self.end(fault)?;
            }
            self.revive()?;
            let calm = self.random.random_range(200..2_000);
            std::thread::sleep(Duration::from_millis(calm));
        }
        Ok(())
    }

    fn process_fault(&mut self) -> Fault {
        let node = self.random.random_range(0..self.count());
        match self.random.random_range(0..5) {
            0 => Fault::Pause(node),
            1 => Fault::Stop(node),
            2 => Fault::Clock(node, self.random.random_range(-CLOCK_OFF..=CLOCK_OFF)),
            _ => Fault::Kill(node),
        }
    }

    fn network_fault(&mut self) -> Fault {
        let one = self.random.random_range(0..self.count());
        let other = (one + self.random.random_range(1..self.count())) % self.count();
        match self.random.random_range(0..5) {
            0 => Fault::Isolate(one),
            1 => Fault::CutStore(one),
            2 => Fault::Cut(one, other),
            _ => Fault::OneWay(one, other),
        }
    }

    fn database_fault(&mut self) -> Fault {
        match self.random.random_range(0..4) {
            0 => Fault::KillDatabase,
            1 => Fault::PauseDatabase,
            2 => Fault::HangUp,
            _ => self.store_fault(),
        }
    }

    fn store_fault(&mut self) -> Fault {
        let slow_down = StoreFault::Status {
            code: 503,
            after: false,
        };
        let internal = StoreFault::Status {
            code: 500,
            after: true,
        };
        let conflict = StoreFault::Status {
            code: 409,
            after: false,
        };
        let silence = StoreFault::Silence { after: true };
        let kinds = [
            ("slow down", vec![Rule::new(slow_down).share(0.6)]),
            (
                "internal errors after the effect",
                vec![Rule::new(internal).on(Verb::Put, "").share(0.4)],
            ),
            (
                "conflicts on creates",
                vec![Rule::new(conflict).on(Verb::Put, "/meta/").share(0.5)],
            ),
            (
                "resets after the effect",
                vec![
                    Rule::new(StoreFault::Reset { after: true })
                        .on(Verb::Put, "")
                        .share(0.4),
                ],
            ),
            (
                "resets before the effect",
                vec![Rule::new(StoreFault::Reset { after: false }).share(0.4)],
            ),
            (
                "silent uploads",
                vec![Rule::new(silence).on(Verb::Put, "/wal/").share(0.3)],
            ),
            (
                "lost answers of the log",
                vec![Rule::new(silence).on(Verb::Put, "/meta/").times(2)],
            ),
            (
                "half bodies",
                vec![
                    Rule::new(StoreFault::TruncateRequest)
                        .on(Verb::Put, "")
                        .share(0.3),
                    Rule::new(StoreFault::TruncateResponse)
                        .on(Verb::Get, "")
                        .share(0.5),
                ],
            ),
            (
                "deletions that fail in part",
                vec![Rule::new(StoreFault::RefuseSome).on(Verb::Delete, "")],
            ),
            (
                "slow",
                vec![Rule::new(StoreFault::Delay { ms: 1_500 }).share(0.3)],
            ),
            ("gone", vec![Rule::new(StoreFault::Reset { after: false })]),
        ];
        let (name, rules) = kinds.choose(&mut self.random).expect("kinds of faults").clone();
        Fault::Store(name, rules)
    }

    /// For people, who read it beside the logs of the nodes.
    fn describe(&mut self, fault: &Fault) -> String {
        match fault {
            Fault::Kill(node) => format!("node {} is killed", self.node(*node).id),
            Fault::Pause(node) => format!("node {} is paused", self.node(*node).id),
            Fault::Stop(node) => format!("node {} is stopped", self.node(*node).id),
            Fault::Clock(node, seconds) => {
                format!("the clock of node {} jumps by {seconds} s", self.node(*node).id)
            }
            Fault::Store(name, _) => format!("the store: {name}"),
            Fault::Isolate(node) => format!("node {} hears nobody", self.node(*node).id),
            Fault::Cut(one, other) => {
                let (one, other) = (self.node(*one).id, self.node(*other).id);
                format!("nodes {one} and {other} are cut off from each other")
            }
            Fault::OneWay(from, to) => {
                let (from, to) = (self.node(*from).id, self.node(*to).id);
                format!("node {to} does not hear node {from}")
            }
            Fault::CutStore(node) => format!("node {} does not hear the store", self.node(*node).id),
            Fault::KillDatabase => "the database is killed".to_owned(),
            Fault::PauseDatabase => "the database is paused".to_owned(),
            Fault::HangUp => "the database hangs up".to_owned(),
        }
    }

    fn begin(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault {
            Fault::Kill(node) => self.node(*node).kill(),
            Fault::Pause(node) => self.node(*node).signal("STOP")?,
            Fault::Stop(node) => {
                let status = self.node(*node).stop()?;
                self.note(format!("it ended with {status}"));
            }
            Fault::Clock(node, seconds) => self.node(*node).set_clock(*seconds)?,
            Fault::Store(_, rules) => self.proxy.set_rules(rules.clone()),
            Fault::Isolate(node) => self.net()?.isolate(&self.place(*node)?)?,
            Fault::Cut(one, other) => self.net()?.cut(&self.place(*one)?, &self.place(*other)?)?,
            Fault::OneWay(from, to) => {
                let (from, to) = (self.place(*from)?, self.place(*to)?);
                self.net()?.drop_packets(&from.host, &to)?;
            }
            Fault::CutStore(node) => self.net()?.cut_port(&self.place(*node)?, self.proxy.port())?,
            Fault::KillDatabase => self.database()?.kill(),
            Fault::PauseDatabase => self.database()?.signal("STOP"),
            Fault::HangUp => {
                self.database()?.psql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'diskless'",
                )?;
            }
        }
        Ok(())
    }

    fn end(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault {
            Fault::Kill(node) | Fault::Stop(node) => self.node(*node).start()?,
            Fault::Pause(node) => self.node(*node).signal("CONT")?,
            Fault::Clock(node, _) => self.node(*node).set_clock(0)?,
            Fault::Store(..) => self.proxy.set_rules(Vec::new()),
            Fault::Isolate(_) | Fault::Cut(..) | Fault::OneWay(..) | Fault::CutStore(_) => {
                self.net()?.heal()?
            }
            Fault::KillDatabase => self.database()?.run()?,
            Fault::PauseDatabase => self.database()?.signal("CONT"),
            Fault::HangUp => {}
        }
        Ok(())
    }

    /// Waits until all nodes are ready; who has ended by itself is started again, as Kubernetes would.
    fn revive(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let mut waiting = Vec::new();
            let mut ended = Vec::new();
            for node in self.cluster.nodes() {
                if let Some(status) = node.ended()? {
                    ended.push(format!("node {} ended by itself with {status}", node.id));
                    node.start()?;
                }
                if !node.is_ready() {
                    waiting.push(node.id);
                }
            }
            for text in ended {
                self.note(text);
            }
            if waiting.is_empty() {
                return Ok(());
            }
            if start.elapsed() > UNAVAILABLE {
                bail!("unavailable: nodes {waiting:?} are not ready within {UNAVAILABLE:?}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn count(&self) -> usize {
        self.cluster.brokers.len() + self.cluster.coordinators.len()
    }

    fn node(&mut self, index: usize) -> &mut Node {
        let brokers = self.cluster.brokers.len();
        if index < brokers {
            &mut self.cluster.brokers[index]
        } else {
            &mut self.cluster.coordinators[index - brokers]
        }
    }

    fn place(&mut self, index: usize) -> anyhow::Result<Place> {
        let place = self.node(index).place.clone();
        place.ok_or_else(|| anyhow::anyhow!("node {index} is in no network"))
    }

    fn net(&self) -> anyhow::Result<&'a Network> {
        self.network.ok_or_else(|| anyhow::anyhow!("there is no network"))
    }

    fn database(&mut self) -> anyhow::Result<&mut Postgres> {
        let database = self.database.as_deref_mut();
        database.ok_or_else(|| anyhow::anyhow!("there is no database"))
    }

    fn note(&mut self, text: String) {
        self.journal
            .push(format!("{:7.2} s  {text}", self.start.elapsed().as_secs_f64()));
    }
}
