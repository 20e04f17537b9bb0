//! Which broker a client is sent to: one of its own zone while there is one, otherwise any.

use std::collections::BTreeSet;
use std::hash::Hasher;

use cluster::image::{Broker, MetadataImage};
use types::NodeId;
use types::TopicPartition;
use types::fast::Fnv;

use super::Api;
use super::call::Call;
use crate::net::client_zone;

/// Brokers as one client sees them.
pub(super) struct Steering<'a> {
    image: &'a MetadataImage,
    /// Where partitions and groups of this client live, by id.
    candidates: Vec<&'a Broker>,
    zone: Option<String>,
}

impl Api {
    /// The zone of the client; `None`: unknown, that of the broker counts.
    pub(super) fn zone_of(&self, call: &Call, image: &MetadataImage, rack: Option<&str>) -> Option<String> {
        let known: BTreeSet<&str> = image
            .record()
            .brokers
            .iter()
            .map(|broker| broker.zone.as_str())
            .collect();
        let client_id = call.header.client_id.as_deref();
        client_zone(client_id, rack, call.peer.zone.as_deref(), &known).map(str::to_owned)
    }

    /// Brokers as the client behind `call` sees them.
    pub(super) fn steering<'a>(&self, call: &Call, image: &'a MetadataImage) -> Steering<'a> {
        Steering::new(image, self.zone_of(call, image, None), &self.zone)
    }
}

impl<'a> Steering<'a> {
    /// For a client in `zone`, or in `default_zone` if that is unknown.
    pub(super) fn new(image: &'a MetadataImage, zone: Option<String>, default_zone: &str) -> Steering<'a> {
        let effective = zone.as_deref().unwrap_or(default_zone);
        let brokers = &image.record().brokers;
        let staying: Vec<&Broker> = brokers.iter().filter(|broker| !broker.draining).collect();
        let near: Vec<&Broker> = staying
            .iter()
            .copied()
            .filter(|broker| broker.zone == effective)
            .collect();
        let candidates = [near, staying].into_iter().find(|some| !some.is_empty());
        Steering {
            image,
            candidates: candidates.unwrap_or_else(|| brokers.iter().collect()),
            zone,
        }
    }

    /// Every broker that clients may know of: all that stay, or all if none does.
    pub(super) fn brokers(&self) -> impl Iterator<Item = &'a Broker> {
        let brokers = &self.image.record().brokers;
        let some_stay = brokers.iter().any(|broker| !broker.draining);
        brokers
            .iter()
            .filter(move |broker| !broker.draining || !some_stay)
    }

    /// The port of `broker` for this client.
    pub(super) fn port(&self, broker: &Broker) -> i32 {
        let own = self
            .zone
            .as_ref()
            .and_then(|zone| broker.zone_ports.iter().find(|port| port.zone == *zone));
        own.map_or(broker.port, |port| port.port).into()
    }

    /// The broker that the client takes for the leader of `partition`. Of all candidates the one with the highest hash,
    /// so that a broker that comes or goes moves its own share alone (rendezvous hashing).
    pub(super) fn leader(&self, partition: TopicPartition) -> Option<&'a Broker> {
        self.choose(|hasher| {
            hasher.write(partition.topic.0.as_bytes());
            hasher.write_i32(partition.partition);
        })
    }

    /// The broker that the client takes for the controller.
    pub(super) fn controller(&self) -> Option<&'a Broker> {
        self.choose(|hasher| hasher.write(b"controller"))
    }

    /// The broker that the client takes for a group's coordinator: the asked one if it will do.
    pub(super) fn coordinator(&self, key: &str, asked: NodeId) -> Option<&'a Broker> {
        let here = self.candidates.iter().copied().find(|broker| broker.id == asked);
        here.or_else(|| self.choose(|hasher| hasher.write(key.as_bytes())))
    }

    fn choose(&self, key: impl Fn(&mut Fnv)) -> Option<&'a Broker> {
        let score = |broker: &&Broker| {
            let mut hasher = Fnv::default();
            key(&mut hasher);
            hasher.write_i32(broker.id.0);
            (hasher.finish(), broker.id)
        };
        self.candidates.iter().copied().max_by_key(score)
    }
}

#[cfg(test)]
mod tests {
    use cluster::image::{ImageRecord, ZonePort};
    use types::TopicId;

    use super::*;

    fn broker(id: i32, zone: &str, draining: bool) -> Broker {
        let zone_ports = ["a", "b"].iter().zip([9093, 9094]);
        Broker {
            id: NodeId(id),
            zone: zone.to_owned(),
            host: format!("broker-{id}"),
            port: 9092,
            zone_ports: zone_ports
                .map(|(zone, port)| ZonePort {
                    zone: (*zone).to_owned(),
                    port,
                })
                .collect(),
            internal: String::new(),
            draining,
            serves_objects: None,
        }
    }

    fn image(brokers: Vec<Broker>) -> MetadataImage {
        MetadataImage::new(ImageRecord {
            version: 1,
            controller_epoch: 1,
            cluster_id: "c".to_owned(),
            controller: NodeId(1),
            controller_address: String::new(),
            brokers,
            topics: Vec::new(),
            shards: Vec::new(),
            group_shards: 1,
            feature_level: None,
            default_partitions: None,
        })
    }

    fn leaders(image: &MetadataImage, zone: Option<&str>) -> Vec<i32> {
        let steering = Steering::new(image, zone.map(str::to_owned), "a");
        let partition = |partition| TopicPartition {
            topic: TopicId::default(),
            partition,
        };
        (0..200)
            .filter_map(|index| steering.leader(partition(index)))
            .map(|broker| broker.id.0)
            .collect()
    }

    #[test]
    fn leaders_are_of_the_clients_zone_and_share_the_partitions() {
        let image = image(vec![
            broker(1, "a", false),
            broker(2, "a", false),
            broker(3, "b", false),
            broker(4, "b", true),
        ]);
        let near = leaders(&image, Some("a"));
        assert_eq!(near.len(), 200);
        for id in [1, 2] {
            let count = near.iter().filter(|leader| **leader == id).count();
            assert!((60..=140).contains(&count), "broker {id} leads {count} of 200");
        }
        assert!(
            leaders(&image, Some("b")).iter().all(|id| *id == 3),
            "a draining broker leads nothing"
        );
        assert_eq!(leaders(&image, None), near, "unknown: the zone of the broker");
    }

    #[test]
    fn without_a_broker_near_another_zone_serves() {
        let far = image(vec![broker(3, "b", false)]);
        assert!(leaders(&far, Some("a")).iter().all(|id| *id == 3));
        let leaving = image(vec![broker(3, "b", true)]);
        assert!(
            leaders(&leaving, Some("a")).iter().all(|id| *id == 3),
            "better than nobody"
        );
        assert!(leaders(&image(Vec::new()), Some("a")).is_empty());
    }

    #[test]
    fn a_new_broker_takes_only_its_share() {
        let before = image((1..=4).map(|id| broker(id, "a", false)).collect());
        let after = image((1..=5).map(|id| broker(id, "a", false)).collect());
        let moved = leaders(&before, None)
            .into_iter()
            .zip(leaders(&after, None))
            .filter(|(b, a)| b != a);
        let moved: Vec<_> = moved.collect();
        assert!(moved.iter().all(|(_, to)| *to == 5));
        assert!((10..=80).contains(&moved.len()), "{} of 200 moved", moved.len());
    }

    #[test]
    fn clients_are_told_the_port_of_their_zone() {
        let image = image(vec![broker(1, "a", false), broker(2, "b", true)]);
        let port = |zone: Option<&str>| {
            let steering = Steering::new(&image, zone.map(str::to_owned), "a");
            steering.port(image.broker(NodeId(1)).unwrap())
        };
        assert_eq!(
            (port(Some("b")), port(Some("elsewhere")), port(None)),
            (9094, 9092, 9092)
        );
        let ids: Vec<i32> = Steering::new(&image, None, "a")
            .brokers()
            .map(|broker| broker.id.0)
            .collect();
        assert_eq!(ids, [1]);
    }

    #[test]
    fn the_asked_broker_coordinates_unless_it_leaves_or_is_far() {
        let image = image(vec![
            broker(1, "a", false),
            broker(2, "a", false),
            broker(3, "b", false),
            broker(4, "a", true),
        ]);
        let coordinator = |zone: &str, asked| {
            let steering = Steering::new(&image, Some(zone.to_owned()), "a");
            steering.coordinator("group", NodeId(asked)).unwrap().id.0
        };
        assert_eq!(coordinator("a", 2), 2);
        assert_eq!(coordinator("b", 2), 3);
        assert!([1, 2].contains(&coordinator("a", 4)));
    }
}
