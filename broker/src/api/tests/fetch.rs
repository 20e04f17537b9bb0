//! Fetch and pipelined Produce, as clients speak them.

use blob::faults::{Decision, Fault, Faulty};
use blob::{BlobError, Operation};
use coordinator::protocol::{TailRequest, TailResponse, api_key};
use kafka_wire::messages::fetch_request::ForgottenTopic;
use types::{LogOffset, ShardId};

use super::*;
use crate::auth::ClusterSecret;
use crate::rpc::Pool;

/// One request for several topics, each from an offset on.
fn of_topics(topics: &[(&str, i64)], max_bytes: i32) -> FetchRequest {
    let mut request = fetch("", 0, 0).with_max_bytes(max_bytes);
    let topic = |(name, offset): &(&str, i64)| {
        let partition = FetchPartition::default()
            .with_fetch_offset(*offset)
            .with_current_leader_epoch(-1)
            .with_partition_max_bytes(1 << 20);
        FetchTopic::default()
            .with_topic(topic_name(name))
            .with_partitions(vec![partition])
    };
    request.topics = topics.iter().map(topic).collect();
    request
}

/// Topic, error and base offsets of each partition.
fn told(response: &FetchResponse) -> Vec<(String, i16, Vec<i64>)> {
    let partition = |topic: &kafka_wire::messages::fetch_response::FetchableTopicResponse| {
        let partition = &topic.partitions[0];
        let records = partition.records.clone().unwrap_or_default();
        let offsets = batch::batches(&records).map(|batch| batch.unwrap().0.base_offset);
        (topic.topic.to_string(), partition.error_code, offsets.collect())
    };
    response.responses.iter().map(partition).collect()
}

#[tokio::test(start_paused = true)]
async fn limits_are_exact_and_each_partition_has_its_turn() {
    let c = cluster().await;
    let names = ["a", "b", "c"];
    let (mut client, _) = c.with_topic(names[0]).await;
    let batch = plain(10, c.now(), |_| {});
    for name in names {
        c.with_topic(name).await;
        for _ in 0..4 {
            assert_eq!(client.produce(name, 0, batch.clone(), -1).await.0, 0);
        }
    }
    let size = i32::try_from(batch.len()).unwrap();
    let all = names.map(|name| (name, 0));
    let batches = |response: &FetchResponse| {
        told(response)
            .iter()
            .map(|(.., found)| found.len())
            .sum::<usize>()
    };
    for (limit, expected) in [
        (12 * size, 12),
        (5 * size, 5),
        (2 * size, 2),
        (2 * size - 1, 1),
        (1, 1),
        (0, 1),
    ] {
        let response = client.call(&of_topics(&all, limit), 12).await;
        assert_eq!(batches(&response), expected, "within {limit} bytes");
    }
    let mut one_partition = fetch("a", 0, 0);
    one_partition.topics[0].partitions[0].partition_max_bytes = 3 * size - 1;
    assert_eq!(batches(&client.call(&one_partition, 12).await), 2);
    // Two consumers whose fetches take turns, with room for one batch each: all partitions are served, to both, and an
    // empty one gives nothing of its turn to the next.
    c.with_topic("a-empty").await;
    let some = [("a", 0), ("a-empty", 0), ("b", 0), ("c", 0)];
    let mut consumers = [c.client().await, c.client().await];
    let mut served = [const { Vec::new() }; 2];
    for _ in 0..60 {
        for (consumer, served) in consumers.iter_mut().zip(&mut served) {
            let response = consumer.call(&of_topics(&some, size), 12).await;
            let found = told(&response)
                .into_iter()
                .filter(|(.., found)| !found.is_empty());
            served.extend(found.map(|(name, ..)| name));
        }
    }
    for served in served {
        for name in names {
            let turns = served.iter().filter(|other| *other == name).count();
            assert!((10..=30).contains(&turns), "{name}: {turns} of 60");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_errs_leaves_the_others_alone() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("good").await;
    c.with_topic("short").await;
    for name in ["good", "short"] {
        assert_eq!(client.produce(name, 0, plain(2, c.now(), |_| {}), -1).await.0, 0);
    }
    let topics = [("short", 3), ("absent", 0), ("good", 0), ("short", -5)];
    // An error is told at once, however long the client would wait.
    let request = of_topics(&topics, 1 << 20)
        .with_max_wait_ms(60_000)
        .with_min_bytes(1 << 20);
    let start = c.env.instant();
    let response = client.call(&request, 12).await;
    assert!(c.env.instant() - start < SECOND);
    let [range, absent] = [
        ResponseError::OffsetOutOfRange,
        ResponseError::UnknownTopicOrPartition,
    ];
    let expected = [
        ("short".to_owned(), range.code(), vec![]),
        ("absent".to_owned(), absent.code(), vec![]),
        ("good".to_owned(), 0, vec![0]),
        ("short".to_owned(), range.code(), vec![]),
    ];
    assert_eq!(told(&response), expected);
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_batch_costs_its_partition_only() {
    let c = cluster().await;
    let (mut client, first) = c.with_topic("t").await;
    let (_, second) = c.with_topic("u").await;
    let mut request = produce("t", 0, plain(2, c.now(), |_| {}), -1);
    request
        .topic_data
        .extend(produce("u", 0, plain(2, c.now(), |_| {}), -1).topic_data);
    let response = client.call(&request, 9).await;
    assert!(
        response
            .responses
            .iter()
            .all(|topic| topic.partition_responses[0].error_code == 0)
    );
    let objects = c.store.list(wal::PREFIX, None, 100).await.unwrap();
    assert_eq!(objects.len(), 1, "batches of a request travel together");
    // Objects are sorted by topic id: the last byte belongs to the higher one.
    let mut bytes = c.store.get(&objects[0].key).await.unwrap().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    c.store.put(&objects[0].key, vec![bytes.into()]).await.unwrap();
    let c = c.reborn().await;
    let mut client = c.client().await;
    let corrupt = ResponseError::CorruptMessage.code();
    let (t, u) = if first > second {
        (corrupt, 0)
    } else {
        (0, corrupt)
    };
    let deadline = c.env.instant() + 60 * SECOND;
    loop {
        let response = client.call(&of_topics(&[("t", 0), ("u", 0)], 1 << 20), 12).await;
        let told: Vec<_> = told(&response)
            .into_iter()
            .map(|(_, code, found)| (code, found.len()))
            .collect();
        if told == [(t, usize::from(t == 0)), (u, usize::from(u == 0))] {
            break;
        }
        assert!(c.env.instant() < deadline, "still {told:?}");
        c.env.sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_stable_offset_is_always_there() {
    let c = cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    for end in [0, 3] {
        for committed in [0, 1] {
            for offset in [0, end] {
                let request = fetch("t", offset, 0).with_isolation_level(committed);
                let response = client.call(&request, 12).await;
                let partition = &response.responses[0].partitions[0];
                assert_eq!(
                    (partition.high_watermark, partition.last_stable_offset),
                    (end, end)
                );
                assert_eq!(partition.aborted_transactions.is_some(), committed == 1);
            }
        }
        client.produce("t", 0, plain(3, c.now(), |_| {}), -1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_save_what_is_known_by_name_and_by_id() {
    let c = cluster().await;
    let (mut client, t) = c.with_topic("t").await;
    let (_, u) = c.with_topic("u").await;
    for (version, by_id) in [(7, false), (12, false), (13, true), (18, true)] {
        let mut open = of_topics(&[("t", 0), ("u", 0)], 1 << 20).with_session_epoch(0);
        open.topics[0].topic_id = t;
        open.topics[1].topic_id = u;
        open.topics[0].partitions[0].fetch_offset = client.offset("t", -1).await.1;
        open.topics[1].partitions[0].fetch_offset = client.offset("u", -1).await.1;
        let response = client.call(&open, version).await;
        let id = response.session_id;
        assert!(id > 0 && response.responses.len() == 2, "v{version}");
        let next = |epoch| {
            FetchRequest::default()
                .with_min_bytes(1)
                .with_max_bytes(1 << 20)
                .with_session_id(id)
                .with_session_epoch(epoch)
        };
        let response = client.call(&next(1), version).await;
        assert_eq!(
            (response.session_id, response.responses.len()),
            (id, 0),
            "v{version}"
        );
        // A fetch that waits is woken, and tells of the one partition.
        client.send(&next(2).with_max_wait_ms(60_000), version).await;
        let mut producer = c.client().await;
        let offset = producer.produce("u", 0, plain(1, c.now(), |_| {}), -1).await.1;
        let (_, response) = client.receive::<FetchRequest>(version).await;
        assert_eq!(response.responses.len(), 1, "v{version}");
        let topic = &response.responses[0];
        let named = (topic.topic.as_str(), topic.topic_id);
        assert_eq!(
            named,
            if by_id { ("", u) } else { ("u", Uuid::nil()) },
            "v{version}"
        );
        assert_eq!(offsets_of(&response), [offset]);
        let forgotten = ForgottenTopic::default()
            .with_topic(topic_name("u"))
            .with_topic_id(u)
            .with_partitions(vec![0]);
        let response = client
            .call(&next(3).with_forgotten_topics_data(vec![forgotten]), version)
            .await;
        assert_eq!(response.responses.len(), 0, "v{version}");
        let response = client.call(&next(3), version).await;
        let error = ResponseError::InvalidFetchSessionEpoch;
        assert_eq!(
            (response.error_code, response.session_id),
            (error.code(), 0),
            "v{version}"
        );
        client.call(&next(-1), version).await;
        let response = client.call(&next(4), version).await;
        assert_eq!(
            response.error_code,
            ResponseError::FetchSessionIdNotFound.code(),
            "v{version}"
        );
    }
}

/// Every WAL object takes `UPLOAD`, and nothing but the window makes a flush.
async fn slow_cluster() -> Cluster {
    let slow = |store, env: &Env| -> SharedStore {
        let plan = |_, key: &str| Decision {
            delay: if key.starts_with(wal::PREFIX) {
                UPLOAD
            } else {
                Duration::ZERO
            },
            fault: Fault::None,
        };
        Arc::new(Faulty::new(store, env.clone(), Arc::new(plan)))
    };
    cluster_with(slow, |config| config.produce.puts_per_second = 0).await
}

const UPLOAD: Duration = Duration::from_millis(400);
const WINDOW: Duration = Duration::from_millis(250);

#[tokio::test(start_paused = true)]
async fn five_requests_in_flight_take_the_time_of_one() {
    let c = slow_cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    let start = c.env.instant();
    for sequence in 0..5 {
        client
            .send(&produce("t", 0, sequenced(5, sequence, 1, c.now()), -1), 9)
            .await;
    }
    for offset in 0..5 {
        let (id, response) = client.receive::<ProduceRequest>(9).await;
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!((partition.error_code, partition.base_offset), (0, offset));
        assert_eq!(id, client.next - 4 + i32::try_from(offset).unwrap());
    }
    assert!(c.env.instant() - start < 2 * (WINDOW + UPLOAD));
    assert_eq!(c.store.list(wal::PREFIX, None, 100).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_are_taken_while_earlier_ones_are_uploaded() {
    let c = slow_cluster().await;
    let (mut client, _) = c.with_topic("t").await;
    let start = c.env.instant();
    // One every 100 ms, each far longer on its way than that.
    for sequence in 0..20 {
        client
            .send(&produce("t", 0, sequenced(5, sequence, 1, c.now()), -1), 9)
            .await;
        c.env.sleep(SECOND / 10).await;
    }
    for offset in 0..20 {
        let (_, response) = client.receive::<ProduceRequest>(9).await;
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!((partition.error_code, partition.base_offset), (0, offset));
    }
    // The last one waits for one window and one upload, not for those before it.
    assert!(c.env.instant() - start < 2 * SECOND + 2 * (WINDOW + UPLOAD));
}

/// A cluster of one shard, and a topic `t` with 70 partitions of 100 batches each, in 100 objects.
async fn behind() -> Cluster {
    let c = cluster_with(
        |store, _| store,
        |config| {
            config.coordinator.metadata_partitions = 1;
            config.coordinator.num_partitions = 70;
        },
    )
    .await;
    let (mut client, _) = c.with_topic("t").await;
    for _ in 0..100 {
        let mut request = produce("t", 0, Bytes::new(), -1);
        let batch = plain(1, c.now() - 3_600_000, |_| {});
        let partition = |index| {
            PartitionProduceData::default()
                .with_index(index)
                .with_records(Some(batch.clone()))
        };
        request.topic_data[0].partition_data = (0..70).map(partition).collect();
        let response = client.call(&request, 9).await;
        let partitions = &response.responses[0].partition_responses;
        assert!(partitions.iter().all(|partition| partition.error_code == 0));
    }
    c
}

#[tokio::test(start_paused = true)]
async fn more_partitions_than_a_leader_names_at_a_time_have_their_turns() {
    let c = behind().await.reborn().await;
    let mut client = c.client().await;
    let partition = |index| {
        FetchPartition::default()
            .with_partition(index)
            .with_current_leader_epoch(-1)
            .with_partition_max_bytes(1 << 20)
    };
    let mut open = fetch("t", 0, 0).with_max_bytes(64 << 20).with_session_epoch(0);
    open.topics[0].partitions = (0..70).map(partition).collect();
    let deadline = c.env.instant() + 60 * SECOND;
    let mut served = std::collections::BTreeSet::new();
    let mut session = 0;
    for epoch in 0..12 {
        let request = match epoch {
            0 => open.clone(),
            _ => FetchRequest::default()
                .with_max_bytes(64 << 20)
                .with_session_id(session)
                .with_session_epoch(epoch),
        };
        let response = client.call(&request, 12).await;
        assert_eq!(response.error_code, 0);
        session = response.session_id;
        let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
        let some = partitions.filter(|p| p.records.as_ref().is_some_and(|records| !records.is_empty()));
        let some: Vec<_> = some.map(|partition| partition.partition_index).collect();
        // The leader does not name all of them in one answer.
        assert!(some.len() < 70);
        served.extend(some);
        assert!(c.env.instant() < deadline);
    }
    let missing: Vec<_> = (0..70).filter(|index| !served.contains(index)).collect();
    assert!(missing.is_empty(), "{missing:?} never get anything");
}

#[tokio::test(start_paused = true)]
async fn a_back_fill_that_the_store_throttles_slows_down_nobody_else() {
    let c = behind().await;
    let old = c.store.list(wal::PREFIX, None, 1000).await.unwrap();
    let old: std::collections::BTreeSet<String> = old.into_iter().map(|object| object.key).collect();
    let (mut client, _) = c.with_topic("new").await;
    for _ in 0..10 {
        let batch = plain(1, c.now(), |_| {});
        assert_eq!(client.produce("new", 0, batch, -1).await.0, 0);
    }
    let now = c.now();
    c.env.kill();
    let env = Env::simulated(18);
    let plan = move |operation, key: &str| Decision {
        delay: Duration::ZERO,
        fault: match operation == Operation::Get && old.contains(key) {
            true => Fault::Fail(BlobError::Throttled("slow down".to_owned())),
            false => Fault::None,
        },
    };
    let throttling: SharedStore = Arc::new(Faulty::new(c.store, env.clone(), Arc::new(plan)));
    let stores = Stores::retrying(&throttling, &env);
    let c = Cluster::start_over(env, throttling, stores, |_| {}).await;
    let mut behind = c.client().await;
    for partition in 0..10 {
        let mut request = fetch("t", 0, 0);
        request.topics[0].partitions[0].partition = partition;
        behind.send(&request, 12).await;
    }
    c.env.sleep(5 * SECOND).await;
    let mut client = c.client().await;
    for offset in 0..10 {
        let mut request = fetch("new", offset, 0);
        request.topics[0].partitions[0].partition_max_bytes = 1;
        let start = c.env.instant();
        let response = client.call(&request, 12).await;
        assert_eq!(offsets_of(&response), [offset]);
        let batch = plain(1, now, |_| {});
        assert_eq!(client.produce("new", 0, batch, -1).await.0, 0);
        let took = c.env.instant() - start;
        assert!(took < SECOND, "{took:?}");
    }
    let (_, response) = behind.receive::<FetchRequest>(12).await;
    assert_eq!(error_of(&response), ResponseError::KafkaStorageError.code());
}

#[tokio::test(start_paused = true)]
async fn a_leader_tells_brokers_how_long_a_dead_object_stays() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, "the secret of the cluster").unwrap();
    let secret = Arc::new(ClusterSecret::read(&file).unwrap());
    let c = cluster_with(
        |store, _| store,
        |config| {
            config.internal.port = 9190;
            config.internal.secret_file = Some(file);
            config.tuning.jobs.file_grace = 77 * SECOND;
        },
    )
    .await;
    let request = TailRequest {
        shard: ShardId(0),
        from: LogOffset(u64::MAX),
        max_wait_ms: 0,
    };
    let pool = Pool::new(c.env.clone(), secret);
    let deadline = c.env.instant() + 10 * SECOND;
    let call = pool.call("test:9190", api_key::TAIL, &request, deadline);
    let news: TailResponse = call.await.unwrap();
    assert_eq!((news.error_code, news.file_grace_ms), (0, Some(77_000)));
}
