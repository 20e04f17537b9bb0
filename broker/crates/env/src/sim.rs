//! The simulated world: one seed, one clock, one network for all nodes of a run.
//!
//! Bytes between two hosts pass through a pump task that adds a delay drawn from the seed and obeys the cuts that
//! the test has set, so latency, one-way partitions and half-open connections need no operating system. Nothing gives a
//! connection up that is silent, as a kernel may.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{Env, Instant, Listener, Stream};

const PIPE: usize = 64 * 1024;
const BACKLOG: usize = 128;

/// A simulated world. Run it on a current-thread tokio runtime with a paused clock.
#[derive(Clone)]
pub struct Simulation {
    net: SimNet,
    epoch: Instant,
    seeds: Arc<Mutex<StdRng>>,
}

impl Simulation {
    /// A world in which every random choice follows from `seed`.
    pub fn new(seed: u64) -> Simulation {
        let mut seeds = StdRng::seed_from_u64(seed);
        let net = SimNet::new(seeds.next_u64());
        Simulation {
            net,
            epoch: Instant::now(),
            seeds: Arc::new(Mutex::new(seeds)),
        }
    }

    /// The outside world of a (new life of a) node. `host` is its name in addresses.
    pub fn node(&self, host: &str) -> Env {
        let seed = self.seeds.lock().next_u64();
        self.net.0.lock().hosts.insert(host.to_owned());
        Env::in_simulation(self.net.clone(), host, self.epoch, seed)
    }

    /// The network between the nodes.
    pub fn net(&self) -> &SimNet {
        &self.net
    }
}

/// The network of a [`Simulation`].
#[derive(Clone)]
pub struct SimNet(Arc<Mutex<State>>);

struct State {
    random: StdRng,
    latency_us: (u64, u64),
    /// Names that lead to an address, be the host up or not.
    hosts: BTreeSet<String>,
    listeners: BTreeMap<String, mpsc::Sender<Stream>>,
    /// One-way cuts, (from, to).
    cuts: BTreeSet<(String, String)>,
    /// How far the wall clocks of hosts are off, in milliseconds.
    clocks: BTreeMap<String, i64>,
    /// Open connections, by the two hosts; the token cuts both directions.
    links: Vec<(String, String, CancellationToken)>,
    next_port: u16,
}

impl State {
    fn end_links(&self, host: &str) {
        for (_, _, link) in self.links.iter().filter(|(a, b, _)| a == host || b == host) {
            link.cancel();
        }
    }
}

impl SimNet {
    fn new(seed: u64) -> SimNet {
        SimNet(Arc::new(Mutex::new(State {
            random: StdRng::seed_from_u64(seed),
            latency_us: (50, 1_000),
            hosts: BTreeSet::new(),
            listeners: BTreeMap::new(),
            cuts: BTreeSet::new(),
            clocks: BTreeMap::new(),
            links: Vec::new(),
            next_port: 40_000,
        })))
    }

    /// Sets the range of the one-way delay.
    pub fn set_latency(&self, min: Duration, max: Duration) {
        let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        self.0.lock().latency_us = (micros(min), micros(max).max(micros(min) + 1));
    }

    /// Stops bytes from `from` to `to` until [`SimNet::mend`] or [`SimNet::heal`]; the other direction goes on. A connection on which bytes
    /// were held back stays mute for up to as long again, as TCP does: it tries again ever more rarely. New ones work at once.
    pub fn cut(&self, from: &str, to: &str) {
        self.0.lock().cuts.insert((from.to_owned(), to.to_owned()));
    }

    /// Takes one cut back.
    pub fn mend(&self, from: &str, to: &str) {
        self.0.lock().cuts.remove(&(from.to_owned(), to.to_owned()));
    }

    /// Takes all cuts back.
    pub fn heal(&self) {
        self.0.lock().cuts.clear();
    }

    /// Whether bytes from `from` to `to` are stopped.
    pub fn is_cut(&self, from: &str, to: &str) -> bool {
        let state = self.0.lock();
        !state.cuts.is_empty() && state.cuts.contains(&(from.to_owned(), to.to_owned()))
    }

    /// Ends all connections of a host that lives on, as a middlebox does that has lost its memory: what was sent may have
    /// arrived, its answer never will.
    pub fn reset(&self, host: &str) {
        self.0.lock().end_links(host);
    }

    /// Sets the wall clock of a host to true time plus `offset` milliseconds. Its monotonic clock does not mind.
    pub fn set_clock(&self, host: &str, offset: i64) {
        self.0.lock().clocks.insert(host.to_owned(), offset);
    }

    pub(crate) fn clock_offset(&self, host: &str) -> i64 {
        self.0.lock().clocks.get(host).copied().unwrap_or(0)
    }

    pub(crate) fn listen(&self, host: &str, address: &str) -> io::Result<Listener> {
        let mut state = self.0.lock();
        let mut port = address
            .rsplit(':')
            .next()
            .and_then(|p| p.parse::<u16>().ok())
            .unwrap_or(0);
        if port == 0 {
            port = state.next_port;
            state.next_port += 1;
        }
        let address = format!("{host}:{port}");
        if state.listeners.get(&address).is_some_and(|l| !l.is_closed()) {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("{address} is in use"),
            ));
        }
        let (incoming, accepted) = mpsc::channel(BACKLOG);
        state.listeners.insert(address.clone(), incoming);
        Ok(Listener::simulated(accepted, address))
    }

    pub(crate) async fn connect(&self, host: &str, address: &str) -> io::Result<Stream> {
        let delay = self.delay();
        tokio::time::sleep(delay * 2).await;
        let target = address
            .rsplit_once(':')
            .map_or(address, |(host, _)| host)
            .to_owned();
        if self.is_cut(host, &target) || self.is_cut(&target, host) {
            // As a SYN into the void: the caller's own timeout decides.
            std::future::pending::<()>().await;
        }
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, format!("{address} refused"));
        let (listener, link) = {
            let mut state = self.0.lock();
            if !state.hosts.contains(&target) {
                return Err(io::Error::other(format!("{target}: no such host")));
            }
            let listener = state.listeners.get(address).cloned().ok_or_else(refused)?;
            let link = CancellationToken::new();
            state.links.retain(|(_, _, token)| !token.is_cancelled());
            state.links.push((host.to_owned(), target.clone(), link.clone()));
            (listener, link)
        };
        let (near, near_pump) = tokio::io::duplex(PIPE);
        let (far, far_pump) = tokio::io::duplex(PIPE);
        let (discard_near, discard_far) = (CancellationToken::new(), CancellationToken::new());
        let peer = Stream::simulated(far, format!("{host}:0"), discard_far.clone());
        listener.send(peer).await.map_err(|_| refused())?;
        let (near_read, near_write) = tokio::io::split(near_pump);
        let (far_read, far_write) = tokio::io::split(far_pump);
        let there = (host.to_owned(), target.clone());
        let back = (target, host.to_owned());
        self.pump(near_read, far_write, there, link.clone(), discard_near.clone());
        self.pump(far_read, near_write, back, link, discard_far);
        Ok(Stream::simulated(near, address.to_owned(), discard_near))
    }

    /// Ends what a host had open, as the kernel does when a process is killed.
    pub(crate) fn drop_host(&self, host: &str) {
        let mut state = self.0.lock();
        let prefix = format!("{host}:");
        state.listeners.retain(|address, _| !address.starts_with(&prefix));
        state.end_links(host);
    }

    fn delay(&self) -> Duration {
        let mut state = self.0.lock();
        let (min, max) = state.latency_us;
        Duration::from_micros(state.random.random_range(min..max))
    }

    /// Waits while there is a cut, and then for the next time that the sender tries again.
    async fn pass(&self, source: &str, target: &str) {
        while self.is_cut(source, target) {
            let begun = Instant::now();
            while self.is_cut(source, target) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let again = begun.elapsed().mul_f64(self.0.lock().random.random());
            tokio::time::sleep(again).await;
        }
    }

    fn pump(
        &self,
        mut from: tokio::io::ReadHalf<DuplexStream>,
        mut to: tokio::io::WriteHalf<DuplexStream>,
        (source, target): (String, String),
        link: CancellationToken,
        discard: CancellationToken,
    ) {
        let net = self.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0u8; PIPE];
            let closed = link.clone();
            let ended = async {
                let copy = async {
                    loop {
                        let n = match from.read(&mut buffer).await {
                            Ok(0) | Err(_) => break,
                            Ok(n) => n,
                        };
                        tokio::time::sleep(net.delay()).await;
                        net.pass(&source, &target).await;
                        let Some(bytes) = buffer.get(..n) else { break };
                        if to.write_all(bytes).await.is_err() {
                            break;
                        }
                    }
                };
                discard.run_until_cancelled(copy).await;
                // Also the end must come through.
                net.pass(&source, &target).await;
                let _ = to.shutdown().await;
            };
            closed.run_until_cancelled(ended).await;
        });
    }
}
