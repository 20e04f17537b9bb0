//! The picture as the controller publishes it, and what has changed in it of late: nodes are sent that, not all of it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use types::TopicId;

use crate::entry::TopicRecord;
use crate::image::{ImageChanges, ImageRecord, Topic};
use crate::state::Metadata;

/// How many changes are remembered: of topics and of versions together. Who is further behind gets all of the picture.
const REMEMBERED: usize = 10_000;

/// A published picture.
pub(crate) struct Picture {
    /// Version 0: none yet.
    whole: Arc<ImageRecord>,
    /// The same without its topics.
    bare: ImageRecord,
    /// What the topics were made from.
    metadata: Arc<Metadata>,
    /// What the log says of the topics that clients see, and what they see, by id.
    topics: Vec<(Arc<TopicRecord>, Arc<Topic>)>,
    /// Versions and the topics that they have changed, the oldest first.
    history: VecDeque<(u64, Vec<TopicId>)>,
    remembered: usize,
}

impl Picture {
    /// Nothing is published yet; then it is `bare` and topics.
    pub fn new(bare: ImageRecord) -> Picture {
        Picture {
            whole: Arc::new(bare.clone()),
            bare,
            metadata: Arc::default(),
            topics: Vec::new(),
            history: VecDeque::new(),
            remembered: 0,
        }
    }

    /// All of it.
    pub fn whole(&self) -> &Arc<ImageRecord> {
        &self.whole
    }

    /// Publishes the topics of `metadata` and `bare`, whose version does not matter, if there is anything new in them.
    pub fn publish(&mut self, metadata: &Arc<Metadata>, mut bare: ImageRecord) {
        let touched = self.take_topics(metadata);
        let version = self.bare.version;
        bare.version = version;
        if version > 0 && touched.is_empty() && bare == self.bare {
            return;
        }
        bare.version = version + 1;
        self.whole = Arc::new(ImageRecord {
            topics: self.topics.iter().map(|(_, topic)| topic.clone()).collect(),
            ..bare.clone()
        });
        self.remembered += 1 + touched.len();
        self.history.push_back((bare.version, touched));
        self.bare = bare;
        while self.remembered > REMEMBERED {
            let Some((_, forgotten)) = self.history.pop_front() else {
                break;
            };
            self.remembered -= 1 + forgotten.len();
        }
    }

    /// Gives the topics that do not look as before. What is the same is not made anew.
    fn take_topics(&mut self, metadata: &Arc<Metadata>) -> Vec<TopicId> {
        let mut touched = Vec::new();
        if Arc::ptr_eq(metadata, &self.metadata) {
            return touched;
        }
        self.metadata = metadata.clone();
        let mut topics = Vec::with_capacity(metadata.topics.len());
        // Both are in order.
        let mut before = std::mem::take(&mut self.topics).into_iter().peekable();
        for (id, record) in &metadata.topics {
            while let Some((gone, _)) = before.next_if(|(old, _)| old.id < *id) {
                touched.push(gone.id);
            }
            let old = before.next_if(|(old, _)| old.id == *id);
            let topic = match &old {
                Some((same, topic)) if Arc::ptr_eq(same, record) => Some(topic.clone()),
                _ => visible(record).map(Arc::new),
            };
            if old.map(|(_, topic)| topic) != topic {
                touched.push(*id);
            }
            topics.extend(topic.map(|topic| (record.clone(), topic)));
        }
        touched.extend(before.map(|(gone, _)| gone.id));
        self.topics = topics;
        touched
    }

    /// What has changed since `base`; `None` if that is too long ago, or never was.
    pub fn changes_since(&self, base: u64) -> Option<ImageChanges> {
        let oldest = self.history.front().map(|(version, _)| *version)?;
        if base >= self.whole.version || base.checked_add(1)? < oldest {
            return None;
        }
        let news = self
            .history
            .iter()
            .rev()
            .take_while(|(version, _)| *version > base);
        let touched: BTreeSet<TopicId> = news.flat_map(|(_, touched)| touched.iter().copied()).collect();
        let mut picture = self.bare.clone();
        let mut removed = Vec::new();
        for id in touched {
            match self.whole.topic(id) {
                Some(topic) => picture.topics.push(topic.clone()),
                None => removed.push(id),
            }
        }
        Some(ImageChanges {
            base,
            picture,
            removed,
            topics: u32::try_from(self.topics.len()).unwrap_or(u32::MAX),
        })
    }
}

/// A topic as clients see it; `None`: they do not.
fn visible(topic: &TopicRecord) -> Option<Topic> {
    let partitions = topic.partitions.iter().take(topic.ready as usize);
    (!topic.deleting && topic.ready > 0).then(|| Topic {
        id: topic.id,
        name: topic.name.clone(),
        partitions: partitions.copied().collect(),
        configs: topic.configs.clone(),
    })
}
