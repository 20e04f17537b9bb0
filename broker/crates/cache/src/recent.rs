//! A bounded map that forgets what came in first. No I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use types::FastMap;
use uuid::Uuid;

use crate::Object;

/// The objects that came in last.
pub(crate) struct Recent {
    capacity: u64,
    bytes: u64,
    objects: FastMap<Uuid, Arc<Object>>,
    /// One entry for each object, oldest first.
    order: VecDeque<Uuid>,
}

impl Recent {
    /// Holds up to `capacity` bytes.
    pub(crate) fn new(capacity: u64) -> Recent {
        Recent {
            capacity,
            bytes: 0,
            objects: FastMap::default(),
            order: VecDeque::new(),
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn get(&self, id: Uuid) -> Option<Arc<Object>> {
        self.objects.get(&id).cloned()
    }

    /// Takes an object in and gives back those that had to go. One that is larger than the whole capacity comes back
    /// itself, one that is here already stays as it is.
    pub(crate) fn insert(&mut self, id: Uuid, object: Arc<Object>) -> Vec<Arc<Object>> {
        let size = object.size();
        if size > self.capacity || self.objects.contains_key(&id) {
            return vec![object];
        }
        let mut evicted = Vec::new();
        while self.bytes + size > self.capacity {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some(object) = self.objects.remove(&oldest) {
                self.bytes -= object.size();
                evicted.push(object);
            }
        }
        self.bytes += size;
        self.objects.insert(id, object);
        self.order.push_back(id);
        evicted
    }

    /// Rare, so it may look through the order.
    pub(crate) fn remove(&mut self, id: Uuid) {
        if let Some(object) = self.objects.remove(&id) {
            self.bytes -= object.size();
            self.order.retain(|other| *other != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn insert(recent: &mut Recent, id: u128, size: usize) -> usize {
        let object = Object::written(vec![Bytes::from(vec![0; size])]);
        recent.insert(Uuid::from_u128(id), Arc::new(object)).len()
    }

    fn held(recent: &Recent) -> Vec<u128> {
        assert_eq!(recent.order.len(), recent.objects.len());
        let sizes: u64 = recent.objects.values().map(|object| object.size()).sum();
        assert_eq!(recent.bytes(), sizes);
        recent.order.iter().map(|id| id.as_u128()).collect()
    }

    #[test]
    fn the_oldest_goes_however_often_it_was_read() {
        let mut recent = Recent::new(100);
        for id in 0..10 {
            assert_eq!(insert(&mut recent, id, 10), 0);
            for _ in 0..5 {
                assert!(recent.get(Uuid::from_u128(id)).is_some());
            }
        }
        assert_eq!(insert(&mut recent, 10, 10), 1);
        assert_eq!(insert(&mut recent, 11, 25), 3);
        assert_eq!(held(&recent), [4, 5, 6, 7, 8, 9, 10, 11]);
        assert!(recent.get(Uuid::from_u128(3)).is_none());
    }

    #[test]
    fn what_does_not_fit_or_is_here_changes_nothing() {
        let mut recent = Recent::new(100);
        insert(&mut recent, 1, 60);
        assert_eq!(insert(&mut recent, 2, 101), 1);
        assert_eq!(insert(&mut recent, 1, 60), 1);
        assert_eq!(held(&recent), [1]);
        assert_eq!(insert(&mut recent, 3, 100), 1);
        assert_eq!(held(&recent), [3]);
    }

    #[test]
    fn a_forgotten_object_comes_back_as_the_newest() {
        let mut recent = Recent::new(30);
        for id in 0..3 {
            insert(&mut recent, id, 10);
        }
        recent.remove(Uuid::from_u128(0));
        recent.remove(Uuid::from_u128(9));
        assert_eq!(held(&recent), [1, 2]);
        insert(&mut recent, 0, 10);
        insert(&mut recent, 3, 10);
        assert_eq!(held(&recent), [2, 0, 3]);
    }
}
