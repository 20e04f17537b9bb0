//! The store, the requests under way and the writers, and what each step does to them.

pub const WRITERS: usize = 3;
pub const SLOTS: u8 = 4;
pub const MANIFESTS: u8 = 4;
/// Requests under way at the same time.
pub const FLIGHTS: usize = 2;

/// The rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    Nothing,
    /// An object that was there already is taken for one's own if its epoch is.
    Nonce,
    /// A leader serves without a slot of its own at the end of the log.
    Fence,
    /// Whoever has created a slot believes in it, however long ago it looked at the manifest.
    Confirmation,
    /// Slots are deleted before a manifest says so.
    Boundary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub epoch: u8,
    /// The writer.
    pub nonce: u8,
    /// 0: a fencing slot. Otherwise the writer's n-th append.
    pub entry: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Manifest {
    pub epoch: u8,
    pub nonce: u8,
    /// Here the snapshot ends and the log starts.
    pub log_start: u8,
    pub snapshot: Vec<Slot>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    Slot(u8, Slot),
    Manifest(u8, Manifest),
}

/// A create-if-absent that has been sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub from: usize,
    pub body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    NotStarted,
    /// Creates a manifest of a higher epoch.
    Claim,
    /// Creates the fencing slot.
    Fence,
    /// The log is its own; it has to read it.
    Replay,
    Lead,
    Append,
    /// Creates a manifest with a later start of the log.
    Trim,
    /// Fenced.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    pub doing: Doing,
    /// What it wants to create.
    pub wants: Option<Body>,
    /// Its request may be lost or late: it looks before it sends another.
    pub unknown: bool,
    pub stale: bool,
    /// Sequence number of the newest manifest it has seen or made.
    pub seen: u8,
    pub manifest: Option<Manifest>,
    pub next: u8,
    pub state: Vec<Slot>,
    pub appends: u8,
    pub trims: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub slots: Vec<Option<Slot>>,
    pub manifests: Vec<Option<Manifest>>,
    pub writers: Vec<Writer>,
    pub flying: Vec<Request>,
    /// How many replies may still be lost or late.
    pub losses: u8,
    /// The last manifest that a sweep went by.
    pub decided: usize,
    // What has happened:
    pub acknowledged: Vec<(u8, Slot)>,
    /// Epoch, writer, and the first slot that belongs to it alone, of every take-over that was completed.
    pub terms: Vec<(u8, u8, u8)>,
    /// What somebody has acknowledged, taken for its fence or replayed.
    pub believed: Vec<Option<Slot>>,
    pub two_in_a_slot: bool,
    pub leader_misses: bool,
    pub trimmed_uncovered: bool,
    pub damage: bool,
}

impl State {
    pub fn newest(&self) -> Option<(u8, &Manifest)> {
        let (sequence, manifest) = self
            .manifests
            .iter()
            .enumerate()
            .rev()
            .find(|(_, m)| m.is_some())?;
        Some((sequence as u8, manifest.as_ref()?))
    }

    pub fn stored(&self, body: &Body) -> Option<Body> {
        match body {
            Body::Slot(at, _) => self.slots[usize::from(*at)].map(|slot| Body::Slot(*at, slot)),
            Body::Manifest(at, _) => self.manifests[usize::from(*at)]
                .clone()
                .map(|manifest| Body::Manifest(*at, manifest)),
        }
    }

    /// Create-if-absent: whether it was absent.
    pub fn create(&mut self, body: &Body) -> bool {
        if self.stored(body).is_some() {
            return false;
        }
        match body {
            Body::Slot(at, slot) => {
                self.slots[usize::from(*at)] = Some(*slot);
            }
            Body::Manifest(at, manifest) => self.manifests[usize::from(*at)] = Some(manifest.clone()),
        }
        true
    }

    pub fn believe(&mut self, at: u8, slot: Slot) {
        let believed = &mut self.believed[usize::from(at)];
        self.two_in_a_slot |= believed.is_some_and(|other| other != slot);
        *believed = Some(slot);
    }

    /// Sends what the writer wants; a request too many is as good as one that is lost.
    pub fn send(&mut self, writer: usize) {
        self.writers[writer].unknown = false;
        if let Some(body) = self.writers[writer].wants.clone() {
            if self.flying.len() < FLIGHTS {
                self.flying.push(Request { from: writer, body });
                self.flying.sort();
            } else {
                self.writers[writer].unknown = true;
            }
        }
    }

    pub fn end(&mut self, writer: usize) {
        self.writers[writer] = Writer {
            doing: Doing::Gone,
            ..idle()
        };
    }

    pub fn want(&mut self, writer: usize, doing: Doing, body: Body) {
        let out_of_bounds = match &body {
            Body::Slot(at, _) => *at >= SLOTS,
            Body::Manifest(at, _) => *at >= MANIFESTS,
        };
        if out_of_bounds {
            return self.end(writer);
        }
        self.writers[writer].doing = doing;
        self.writers[writer].wants = Some(body);
        self.send(writer);
    }

    /// Reads the newest manifest and sends the next one.
    pub fn claim(&mut self, writer: usize) {
        let nonce = writer as u8;
        let (sequence, manifest) = match self.newest() {
            None => (
                0,
                Manifest {
                    epoch: 1,
                    nonce,
                    log_start: 0,
                    snapshot: Vec::new(),
                },
            ),
            Some((sequence, newest)) => {
                let epoch = newest.epoch + 1;
                (
                    sequence + 1,
                    Manifest {
                        epoch,
                        nonce,
                        ..newest.clone()
                    },
                )
            }
        };
        let me = &mut self.writers[writer];
        me.stale = false;
        me.seen = sequence.saturating_sub(1);
        me.manifest = Some(manifest.clone());
        self.want(writer, Doing::Claim, Body::Manifest(sequence, manifest));
    }

    /// Whether the manifest of `writer` still is the newest one.
    pub fn leads(&self, writer: usize) -> bool {
        let mine = self.writers[writer].manifest.as_ref();
        self.newest().is_some_and(|(_, newest)| {
            mine.is_some_and(|mine| mine.epoch == newest.epoch && mine.nonce == newest.nonce)
        })
    }

    pub fn fence_at(&mut self, writer: usize, at: u8) {
        let epoch = self.writers[writer]
            .manifest
            .as_ref()
            .map_or(0, |manifest| manifest.epoch);
        let fence = Slot {
            epoch,
            nonce: writer as u8,
            entry: 0,
        };
        self.writers[writer].next = at;
        self.want(writer, Doing::Fence, Body::Slot(at, fence));
    }

    pub fn complete(&mut self, writer: usize) {
        let me = &mut self.writers[writer];
        me.doing = Doing::Replay;
        let term = (me.manifest.as_ref().map_or(0, |m| m.epoch), writer as u8, me.next);
        self.terms.push(term);
        self.terms.sort_unstable();
    }

    /// The manifest of `writer` is in its place: it looks for the end of the log.
    pub fn claimed(&mut self, writer: usize, without: Without) {
        let (epoch, start) = self.writers[writer]
            .manifest
            .as_ref()
            .map_or((0, 0), |m| (m.epoch, m.log_start));
        let tail = (start..SLOTS)
            .find(|at| self.slots[usize::from(*at)].is_none())
            .unwrap_or(SLOTS);
        let last = tail
            .checked_sub(1)
            .filter(|last| *last >= start)
            .and_then(|last| self.slots[usize::from(last)]);
        if last.is_some_and(|last| last.epoch >= epoch) {
            return self.end(writer);
        }
        if without == Without::Fence {
            self.writers[writer].next = tail;
            return self.complete(writer);
        }
        self.fence_at(writer, tail);
    }

    /// What the writer wanted to create is there with its bytes.
    pub fn ours(&mut self, writer: usize, without: Without) {
        let Some(body) = self.writers[writer].wants.take() else {
            return;
        };
        self.writers[writer].unknown = false;
        let doing = self.writers[writer].doing;
        if self.writers[writer].stale && without != Without::Confirmation {
            // A manifest that was created long after the look may be one that was there and has been swept.
            if doing == Doing::Claim {
                return self.claim(writer);
            }
            if !self.leads(writer) {
                return self.end(writer);
            }
            self.writers[writer].stale = false;
        }
        match body {
            Body::Manifest(sequence, manifest) => {
                self.writers[writer].seen = sequence;
                self.writers[writer].manifest = Some(manifest);
                match doing {
                    Doing::Claim => self.claimed(writer, without),
                    _ => self.writers[writer].doing = Doing::Lead,
                }
            }
            Body::Slot(at, slot) => {
                self.believe(at, slot);
                self.writers[writer].next = at + 1;
                if doing == Doing::Fence {
                    return self.complete(writer);
                }
                self.acknowledged.push((at, slot));
                self.acknowledged.sort_unstable();
                let me = &mut self.writers[writer];
                me.state.push(slot);
                me.doing = Doing::Lead;
            }
        }
    }

    /// Somebody else's bytes are where the writer wanted to create.
    pub fn theirs(&mut self, writer: usize, body: Body, without: Without) {
        let epoch = self.writers[writer]
            .manifest
            .as_ref()
            .map_or(0, |manifest| manifest.epoch);
        match (self.writers[writer].doing, body) {
            (Doing::Claim, _) => self.claim(writer),
            (Doing::Fence, Body::Slot(at, slot)) if slot.epoch < epoch => {
                // It may be one that was deleted and created again.
                if self.writers[writer].stale && without != Without::Confirmation && !self.leads(writer) {
                    return self.end(writer);
                }
                self.fence_at(writer, at + 1);
            }
            (Doing::Append, Body::Slot(_, slot)) if slot.epoch <= epoch => {
                self.damage = true;
                self.end(writer);
            }
            _ => self.end(writer),
        }
    }

    pub fn replay(&mut self, writer: usize, without: Without) {
        let me = &self.writers[writer];
        let Some(manifest) = me.manifest.clone() else {
            return;
        };
        let trimmed = self
            .newest()
            .is_some_and(|(_, newest)| newest.log_start > manifest.log_start);
        if me.stale && trimmed && without != Without::Confirmation {
            return self.end(writer);
        }
        let range = manifest.log_start..me.next;
        let slots: Option<Vec<Slot>> = range.clone().map(|at| self.slots[usize::from(at)]).collect();
        let Some(slots) = slots else {
            // Trimmed by a later leader, or lost.
            self.damage |= self.leads(writer);
            return self.end(writer);
        };
        for (at, slot) in range.zip(&slots) {
            self.believe(at, *slot);
        }
        let mut state = manifest.snapshot;
        state.extend(slots.into_iter().filter(|slot| slot.entry > 0));
        let earlier = self
            .acknowledged
            .iter()
            .filter(|(_, slot)| slot.epoch < manifest.epoch);
        self.leader_misses |= earlier.into_iter().any(|(_, slot)| !state.contains(slot));
        self.writers[writer].state = state;
        self.writers[writer].doing = Doing::Lead;
    }

    pub fn delete_below(&mut self, bound: u8) {
        let snapshot = self
            .newest()
            .map(|(_, newest)| newest.snapshot.clone())
            .unwrap_or_default();
        for at in 0..usize::from(bound) {
            self.slots[at] = None;
            let gone = self.believed[at].filter(|slot| slot.entry > 0);
            self.trimmed_uncovered |= gone.is_some_and(|slot| !snapshot.contains(&slot));
        }
    }

    /// Deletes what manifest `deciding` declares dead.
    pub fn sweep(&mut self, deciding: usize) {
        self.decided = deciding;
        let Some(manifest) = self.manifests[deciding].clone() else {
            return;
        };
        for at in 0..deciding {
            self.manifests[at] = None;
        }
        self.delete_below(manifest.log_start);
        for writer in &mut self.writers {
            if !matches!(writer.doing, Doing::NotStarted | Doing::Gone) && usize::from(writer.seen) < deciding
            {
                writer.stale = true;
            }
        }
    }

    /// Whether a sweep that goes by manifest `deciding` has something to do. One that has decided stays old, so none with a
    /// lower number ever does again.
    pub fn has_dead(&self, deciding: usize) -> bool {
        if deciding < self.decided {
            return false;
        }
        let Some(manifest) = &self.manifests[deciding] else {
            return false;
        };
        let slots = &self.slots[..usize::from(manifest.log_start)];
        slots.iter().any(Option::is_some) || self.manifests[..deciding].iter().any(Option::is_some)
    }
}

pub fn idle() -> Writer {
    Writer {
        doing: Doing::NotStarted,
        wants: None,
        unknown: false,
        stale: false,
        seen: 0,
        manifest: None,
        next: 0,
        state: Vec::new(),
        appends: 0,
        trims: 0,
    }
}
