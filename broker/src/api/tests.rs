//! A whole node in a simulated world, spoken to as clients speak.

mod admin;
mod early;
mod features;
mod groups;
mod num_partitions;
mod produce;

use std::sync::Arc;
use std::time::Duration;

use blob::{MemoryStore, SharedStore};
use bytes::Bytes;
use env::{Env, Stream};
use kafka_protocol::protocol::Request;
use kafka_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_wire::messages::metadata_request::MetadataRequestTopic;
use kafka_wire::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kafka_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_wire::messages::{
    DeleteRecordsRequest, FetchRequest, FetchResponse, FindCoordinatorRequest, InitProducerIdRequest,
    ListOffsetsRequest, MetadataRequest, OffsetForLeaderEpochRequest, ProduceRequest, TopicName,
};
use kafka_wire::{ResponseError, StrBytes, batch, client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uuid::Uuid;

use crate::config::Config;
use crate::produce::testing::{batch as plain, sequenced};
use crate::server::Node;
use crate::stores::Stores;

mod fetch;

const SECOND: Duration = Duration::from_secs(1);

struct Cluster {
    env: Env,
    store: SharedStore,
    _node: Node,
    _dir: tempfile::TempDir,
}

async fn cluster() -> Cluster {
    cluster_with(|store, _| store, |_| {}).await
}

async fn cluster_with(
    wrap: impl FnOnce(SharedStore, &Env) -> SharedStore,
    change: impl FnOnce(&mut Config),
) -> Cluster {
    let env = Env::simulated(17);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    Cluster::start(env.clone(), wrap(store, &env), change).await
}

impl Cluster {
    async fn start(env: Env, store: SharedStore, change: impl FnOnce(&mut Config)) -> Cluster {
        Cluster::start_over(env, store.clone(), store, change).await
    }

    /// `store` is what its `stores` are made of.
    async fn start_over(
        env: Env,
        store: SharedStore,
        stores: impl Into<Stores>,
        change: impl FnOnce(&mut Config),
    ) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::dev(dir.path(), 9092, Some("memory://"));
        config.internal.advertised_host = Some("test".to_owned());
        change(&mut config);
        let node = Node::start(env.clone(), config, stores).await.unwrap();
        env.timeout(60 * SECOND, node.ready()).await.unwrap();
        Cluster {
            env,
            store,
            _node: node,
            _dir: dir,
        }
    }

    /// Another life after a kill: nothing is left but the store.
    async fn reborn(self) -> Cluster {
        self.env.kill();
        Cluster::start(Env::simulated(18), self.store, |_| {}).await
    }
}

struct Client {
    stream: Stream,
    next: i32,
}

impl Cluster {
    async fn client(&self) -> Client {
        Client {
            stream: self.env.connect("test:9092").await.unwrap(),
            next: 0,
        }
    }

    /// A client and a topic.
    async fn with_topic(&self, name: &str) -> (Client, Uuid) {
        let mut client = self.client().await;
        for _ in 0..50 {
            let topic = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
            let request = MetadataRequest::default()
                .with_topics(Some(vec![topic]))
                .with_allow_auto_topic_creation(true);
            let response = client.call(&request, 12).await;
            let topic = &response.topics[0];
            if topic.error_code == 0 {
                assert_eq!(topic.partitions[0].leader_id.0, 1);
                assert_eq!(response.brokers[0].port, 9092);
                return (client, topic.topic_id);
            }
            assert_eq!(topic.error_code, ResponseError::LeaderNotAvailable.code());
            self.env.sleep(SECOND / 10).await;
        }
        panic!("topic {name} does not come into being");
    }

    fn now(&self) -> i64 {
        self.env.now().0
    }
}

fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

impl Client {
    async fn send<R: Request>(&mut self, request: &R, version: i16) {
        self.next += 1;
        let frame = client::encode(request, version, self.next, "tester").unwrap();
        self.stream.write_all(&frame).await.unwrap();
    }

    async fn receive<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        let len = self.stream.read_i32().await.unwrap();
        let mut frame = vec![0; usize::try_from(len).unwrap()];
        self.stream.read_exact(&mut frame).await.unwrap();
        client::decode::<R>(Bytes::from(frame), version).unwrap()
    }

    async fn call<R: Request>(&mut self, request: &R, version: i16) -> R::Response {
        self.send(request, version).await;
        let (id, response) = self.receive::<R>(version).await;
        assert_eq!(id, self.next);
        response
    }

    /// Error and base offset.
    async fn produce(&mut self, topic: &str, partition: i32, records: Bytes, acks: i16) -> (i16, i64) {
        let response = self.call(&produce(topic, partition, records, acks), 9).await;
        let partition = &response.responses[0].partition_responses[0];
        (partition.error_code, partition.base_offset)
    }

    async fn fetch(&mut self, topic: &str, offset: i64) -> FetchResponse {
        self.call(&fetch(topic, offset, 0), 12).await
    }

    async fn offset(&mut self, topic: &str, timestamp: i64) -> (i16, i64, i64) {
        let partition = ListOffsetsPartition::default()
            .with_timestamp(timestamp)
            .with_current_leader_epoch(-1);
        let topic = ListOffsetsTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id((-1).into())
            .with_topics(vec![topic]);
        let response = self.call(&request, 7).await;
        let found = &response.topics[0].partitions[0];
        (found.error_code, found.offset, found.timestamp)
    }
}

fn produce(topic: &str, partition: i32, records: Bytes, acks: i16) -> ProduceRequest {
    let partition = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(vec![partition]);
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

fn fetch(topic: &str, offset: i64, max_wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default()
        .with_topic(topic_name(topic))
        .with_partitions(vec![partition]);
    FetchRequest::default()
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

fn offsets_of(response: &FetchResponse) -> Vec<i64> {
    let records = response.responses[0].partitions[0].records.clone().unwrap();
    batch::batches(&records)
        .map(|batch| batch.unwrap().0.base_offset)
        .collect()
}

fn error_of(response: &FetchResponse) -> i16 {
    response.responses[0].partitions[0].error_code
}

#[tokio::test(start_paused = true)]
async fn what_is_produced_is_fetched_byte_for_byte() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    let batches = [plain(3, c.now(), |_| {}), sequenced(77, 0, 2, c.now())];
    assert_eq!(client.produce("t", 0, batches[0].clone(), -1).await, (0, 0));
    assert_eq!(client.produce("t", 0, batches[1].clone(), 1).await, (0, 3));
    assert_eq!(
        client.produce("t", 0, batches[1].clone(), -1).await,
        (0, 3),
        "a duplicate keeps its offset"
    );
    let response = client.fetch("t", 0).await;
    let partition = &response.responses[0].partitions[0];
    assert_eq!(
        (
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset
        ),
        (5, 5, 0)
    );
    let records = partition.records.clone().unwrap();
    let found: Vec<_> = batch::batches(&records).map(Result::unwrap).collect();
    assert_eq!(found.len(), 2);
    for ((header, bytes), sent) in found.iter().zip(&batches) {
        assert_eq!(header.partition_leader_epoch, 0);
        assert_eq!(&bytes[16..], &sent[16..], "only offset and epoch differ");
        batch::verify(bytes).unwrap();
    }
    assert_eq!(
        offsets_of(&client.fetch("t", 4).await),
        [3],
        "the whole batch that holds the offset"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_connection_share_segments_and_keep_their_order() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    for sequence in 0..50 {
        client
            .send(&produce("t", 0, sequenced(5, sequence, 1, c.now()), -1), 9)
            .await;
    }
    for offset in 0..50 {
        let (_, response) = client.receive::<ProduceRequest>(9).await;
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!((partition.error_code, partition.base_offset), (0, offset));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_fetch_is_woken_by_the_push() {
    let c = cluster().await;
    let (mut consumer, _) = c.with_topic("t").await;
    let mut producer = c.client().await;
    assert_eq!(producer.produce("t", 0, plain(1, c.now(), |_| {}), -1).await.0, 0);
    let start = c.env.instant();
    consumer.send(&fetch("t", 1, 60_000), 12).await;
    c.env.sleep(5 * SECOND).await;
    assert_eq!(
        producer.produce("t", 0, plain(1, c.now(), |_| {}), -1).await,
        (0, 1)
    );
    let (_, response) = consumer.receive::<FetchRequest>(12).await;
    assert_eq!(offsets_of(&response), [1]);
    assert!(c.env.instant() - start < 7 * SECOND);
    // Without news it ends with its time, empty but not null.
    let start = c.env.instant();
    let response = consumer.call(&fetch("t", 2, 3000), 12).await;
    assert!((3 * SECOND..4 * SECOND).contains(&(c.env.instant() - start)));
    assert_eq!(
        response.responses[0].partitions[0]
            .records
            .as_ref()
            .unwrap()
            .len(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn offsets_outside_the_log_are_out_of_range_on_both_sides() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    client.produce("t", 0, plain(10, c.now(), |_| {}), -1).await;
    let out_of_range = ResponseError::OffsetOutOfRange.code();
    assert_eq!(error_of(&client.fetch("t", 11).await), out_of_range);
    assert_eq!(error_of(&client.fetch("t", 10).await), 0);
    let partition = DeleteRecordsPartition::default().with_offset(5);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(10_000);
    let deleted = client.call(&request, 2).await;
    let deleted = &deleted.topics[0].partitions[0];
    assert_eq!((deleted.error_code, deleted.low_watermark), (0, 5));
    // At once, as at the leader of a partition of Kafka.
    assert_eq!(error_of(&client.fetch("t", 4).await), out_of_range);
    assert_eq!(offsets_of(&client.fetch("t", 5).await), [0]);
    assert_eq!(client.offset("t", -2).await.1, 5);
    // By time, too, what is deleted is not found.
    let time = client.offset("t", -3).await.2;
    assert_eq!(client.offset("t", time - 1000).await, (0, 5, time));
}

#[tokio::test(start_paused = true)]
async fn offsets_by_time_are_those_of_the_record() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    let now = c.now();
    for age in [5000, 3000, 4000] {
        assert_eq!(client.produce("t", 0, plain(2, now - age, |_| {}), -1).await.0, 0);
    }
    assert_eq!(client.offset("t", -1).await, (0, 6, -1));
    assert_eq!(client.offset("t", -2).await, (0, 0, -1));
    assert_eq!(client.offset("t", now - 5000).await, (0, 0, now - 5000));
    assert_eq!(client.offset("t", now - 4999).await, (0, 2, now - 3000));
    assert_eq!(client.offset("t", -3).await, (0, 2, now - 3000));
    assert_eq!(client.offset("t", now).await, (0, -1, -1));
    assert_eq!(
        client.offset("nowhere", -1).await.0,
        ResponseError::UnknownTopicOrPartition.code()
    );
}

#[tokio::test(start_paused = true)]
async fn the_one_epoch_ends_at_the_high_watermark() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    client.produce("t", 0, plain(4, c.now(), |_| {}), -1).await;
    let partition = |epoch| {
        OffsetForLeaderPartition::default()
            .with_leader_epoch(epoch)
            .with_current_leader_epoch(-1)
    };
    let partitions = vec![partition(0), partition(3), partition(-1)];
    let topic = OffsetForLeaderTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions(partitions);
    let request = OffsetForLeaderEpochRequest::default()
        .with_replica_id((-1).into())
        .with_topics(vec![topic]);
    let response = client.call(&request, 4).await;
    let ends = response.topics[0].partitions.iter();
    let ends: Vec<_> = ends
        .map(|end| (end.error_code, end.leader_epoch, end.end_offset))
        .collect();
    assert_eq!(ends, [(0, 0, 4), (0, -1, -1), (0, -1, -1)]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_produced_is_refused_and_nothing_is_stored() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    let now = c.now();
    let large = plain(1, now, |_| {})
        .iter()
        .copied()
        .chain(std::iter::repeat_n(0, 2 << 20))
        .collect::<Vec<u8>>();
    let cases = [
        (
            client.produce("t", 0, plain(1, now, |_| {}), 7).await,
            ResponseError::InvalidRequiredAcks,
        ),
        (
            client.produce("t", 9, plain(1, now, |_| {}), -1).await,
            ResponseError::UnknownTopicOrPartition,
        ),
        (
            client.produce("u", 0, plain(1, now, |_| {}), -1).await,
            ResponseError::UnknownTopicOrPartition,
        ),
        (
            client.produce("t", 0, large.into(), -1).await,
            ResponseError::MessageTooLarge,
        ),
        (
            client.produce("t", 0, Bytes::from_static(b"nonsense"), -1).await,
            ResponseError::InvalidRecord,
        ),
    ];
    for ((code, offset), error) in cases {
        assert_eq!((code, offset), (error.code(), -1), "{error}");
    }
    assert_eq!(client.offset("t", -1).await.1, 0);
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_batch_for_a_topic_not_heard_of_yet_is_no_first_batch() {
    let c = cluster().await;
    let mut client = c.client().await;
    let sent = |sequence| sequenced(7, sequence, 1, c.now());
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(client.produce("late", 0, sent(0), -1).await, (unknown, -1));
    // The news comes while the producer's next batch is on its way.
    c.with_topic("late").await;
    let out_of_order = ResponseError::OutOfOrderSequenceNumber.code();
    assert_eq!(client.produce("late", 0, sent(1), -1).await, (out_of_order, -1));
    assert_eq!(client.produce("late", 0, sent(0), -1).await, (0, 0));
    assert_eq!(client.produce("late", 0, sent(1), -1).await, (0, 1));
}

#[tokio::test(start_paused = true)]
async fn acks_0_gets_no_answer_and_an_error_ends_the_connection() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    client
        .send(&produce("t", 0, plain(2, c.now(), |_| {}), 0), 9)
        .await;
    // The next answer is that of the next request.
    assert_eq!(
        client.produce("t", 0, plain(1, c.now(), |_| {}), -1).await,
        (0, 2)
    );
    client
        .send(&produce("nowhere", 0, plain(2, c.now(), |_| {}), 0), 9)
        .await;
    assert!(client.stream.read_i32().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn topic_ids_and_sessions_are_checked() {
    let c = cluster().await;
    let (mut client, id) = c.with_topic("t").await;
    client.produce("t", 0, plain(1, c.now(), |_| {}), -1).await;
    let mut request = fetch("", 0, 0);
    request.topics[0].topic_id = id;
    let response = client.call(&request, 16).await;
    assert_eq!(
        (response.session_id, error_of(&response), offsets_of(&response)),
        (0, 0, vec![0])
    );
    request.topics[0].topic_id = Uuid::from_u128(1);
    assert_eq!(
        error_of(&client.call(&request, 16).await),
        ResponseError::UnknownTopicId.code()
    );
    let increment = fetch("t", 0, 0).with_session_id(5).with_session_epoch(1);
    let response = client.call(&increment, 12).await;
    assert_eq!(response.error_code, ResponseError::FetchSessionIdNotFound.code());
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_object_costs_its_batches_only() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    client.with_two_objects(&c).await;
    let objects = c.store.list(wal::PREFIX, None, 100).await.unwrap();
    assert_eq!(objects.len(), 2);
    let mut second = Vec::new();
    for object in &objects {
        let bytes = c.store.get(&object.key).await.unwrap();
        if bytes.len() > 300 {
            second = bytes.to_vec();
            second[200] ^= 1;
            c.store
                .put(&object.key, vec![second.clone().into()])
                .await
                .unwrap();
        }
    }
    assert!(!second.is_empty());
    let c = c.reborn().await;
    let mut client = c.client().await;
    let deadline = c.env.instant() + 60 * SECOND;
    loop {
        let response = client.fetch("t", 0).await;
        if error_of(&response) == 0 {
            assert_eq!(
                offsets_of(&response),
                [0],
                "what comes before the corrupt batch is served"
            );
            break;
        }
        assert!(c.env.instant() < deadline, "still {}", error_of(&response));
        c.env.sleep(SECOND).await;
    }
    assert_eq!(
        error_of(&client.fetch("t", 1).await),
        ResponseError::CorruptMessage.code()
    );
}

impl Client {
    /// A small batch in one object, a larger one in the next.
    async fn with_two_objects(&mut self, c: &Cluster) {
        assert_eq!(self.produce("t", 0, plain(1, c.now(), |_| {}), -1).await, (0, 0));
        c.env.sleep(SECOND).await;
        assert_eq!(self.produce("t", 0, plain(40, c.now(), |_| {}), -1).await, (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn transactions_are_refused_in_words() {
    let c = cluster().await;
    let mut client = c.client().await;
    let key = StrBytes::from_static_str("my-transaction");
    let request = FindCoordinatorRequest::default()
        .with_key_type(1)
        .with_coordinator_keys(vec![key.clone()]);
    let response = client.call(&request, 4).await;
    let message = response.coordinators[0].error_message.clone().unwrap();
    assert!(message.contains("transactions are not supported"), "{message}");
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(kafka_wire::messages::TransactionalId(key)));
    assert_ne!(client.call(&request, 4).await.error_code, 0);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let response = client
            .call(&InitProducerIdRequest::default().with_transactional_id(None), 4)
            .await;
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        ids.push(response.producer_id.0);
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn groups_are_coordinated_by_the_asked_broker() {
    let c = cluster().await;
    let mut client = c.client().await;
    let request = FindCoordinatorRequest::default().with_key(StrBytes::from_static_str("g"));
    let response = client.call(&request, 3).await;
    assert_eq!(
        (response.error_code, response.node_id.0, response.port),
        (0, 1, 9092)
    );
    let request = MetadataRequest::default()
        .with_topics(Some(vec![
            MetadataRequestTopic::default().with_name(Some(topic_name("absent"))),
        ]))
        .with_allow_auto_topic_creation(false);
    let response = client.call(&request, 12).await;
    assert_eq!(
        response.topics[0].error_code,
        ResponseError::UnknownTopicOrPartition.code()
    );
    assert_eq!(
        client
            .call(&MetadataRequest::default().with_topics(None), 12)
            .await
            .topics
            .len(),
        0
    );
}
