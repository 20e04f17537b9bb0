use bytes::Bytes;
use env::Env;
use kafka_wire::fetch::{FetchBatch, FetchTopic};
use kafka_wire::messages::TopicName;
use kafka_wire::messages::fetch_request::{self, ForgottenTopic};

use super::*;

struct Fixture {
    sessions: Sessions,
    now: Instant,
    random: u64,
}

fn fixture() -> Fixture {
    Fixture {
        sessions: Sessions::default(),
        now: Env::production().instant(),
        random: 0,
    }
}

fn name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// Topics with partitions and the offset that is wanted of each.
fn request(id: i32, epoch: i32, topics: &[(&str, &[(i32, i64)])]) -> FetchRequest {
    let topics = topics.iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().map(|(index, offset)| {
            fetch_request::FetchPartition::default()
                .with_partition(*index)
                .with_fetch_offset(*offset)
        });
        fetch_request::FetchTopic::default()
            .with_topic(name(topic))
            .with_partitions(partitions.collect())
    });
    FetchRequest::default()
        .with_session_id(id)
        .with_session_epoch(epoch)
        .with_topics(topics.collect())
}

fn forget(request: FetchRequest, topic: &str, partitions: &[i32]) -> FetchRequest {
    let forgotten = ForgottenTopic::default()
        .with_topic(name(topic))
        .with_partitions(partitions.to_vec());
    request.with_forgotten_topics_data(vec![forgotten])
}

/// Error, high watermark and bytes of a partition.
type Told = (i16, i64, usize);

impl Fixture {
    fn begin(&self, request: &FetchRequest) -> Result<Round, ResponseError> {
        self.sessions.begin(request, false, self.now)
    }

    /// The session, and the partitions in the answer; `told` says what each partition would be answered with.
    fn round(
        &mut self,
        request: &FetchRequest,
        told: impl Fn(&str, i32) -> Told,
    ) -> (i32, Vec<(String, i32)>) {
        let round = self.begin(request).unwrap();
        let mut answer = Fetch::default();
        for asked in &round.asked {
            let TopicKey::Name(topic) = &asked.topic else {
                unreachable!()
            };
            let (error_code, high_watermark, size) = told(topic, asked.partition);
            let batch = FetchBatch {
                batch: Bytes::from(vec![0; size]),
                base_offset: 0,
                leader_epoch: 0,
                log_append_time: None,
            };
            answer.topics.push(FetchTopic {
                name: topic.clone(),
                id: Uuid::nil(),
                partitions: vec![FetchPartition {
                    index: asked.partition,
                    error_code,
                    high_watermark,
                    last_stable_offset: high_watermark,
                    log_start_offset: 0,
                    aborted_transactions: None,
                    preferred_read_replica: -1,
                    batches: if size > 0 { vec![batch] } else { vec![] },
                }],
            });
        }
        self.random += 1;
        self.sessions.finish(round, &mut answer, self.now, self.random);
        let partitions = answer.topics.iter().flat_map(|topic| {
            let name = topic.name.to_string();
            topic.partitions.iter().map(move |p| (name.clone(), p.index))
        });
        (answer.session_id, partitions.collect())
    }

    fn offsets(&self, request: &FetchRequest) -> Vec<(i32, i64)> {
        let asked = self.begin(request).unwrap().asked;
        asked
            .iter()
            .map(|asked| (asked.partition, asked.wish.offset))
            .collect()
    }
}

fn quiet(_: &str, _: i32) -> Told {
    (0, 10, 0)
}

#[test]
fn an_increment_tells_only_what_is_new() {
    let mut f = fixture();
    let (id, all) = f.round(
        &request(0, 0, &[("a", &[(0, 5), (1, 6)]), ("b", &[(0, 7)])]),
        quiet,
    );
    assert!(id > 0);
    assert_eq!(all.len(), 3, "the first answer is full");
    assert_eq!(f.round(&request(id, 1, &[]), quiet), (id, vec![]));
    let a1 = vec![("a".to_owned(), 1)];
    let data = |topic: &str, index| {
        if (topic, index) == ("a", 1) {
            (0, 10, 9)
        } else {
            quiet(topic, index)
        }
    };
    assert_eq!(f.round(&request(id, 2, &[]), data).1, a1);
    let longer = |topic: &str, index| {
        if (topic, index) == ("a", 1) {
            (0, 11, 0)
        } else {
            quiet(topic, index)
        }
    };
    assert_eq!(f.round(&request(id, 3, &[]), longer).1, a1);
    assert_eq!(f.round(&request(id, 4, &[]), longer).1, []);
    let broken = |topic: &str, index| {
        if (topic, index) == ("a", 1) {
            (6, -1, 0)
        } else {
            quiet(topic, index)
        }
    };
    assert_eq!(f.round(&request(id, 5, &[]), broken).1, a1);
    assert_eq!(
        f.round(&request(id, 6, &[]), broken).1,
        a1,
        "errors are always told"
    );
    assert_eq!(f.round(&request(id, 7, &[]), longer).1, a1, "and so is their end");
}

#[test]
fn partitions_are_added_changed_and_forgotten() {
    let mut f = fixture();
    let (id, _) = f.round(&request(0, 0, &[("a", &[(0, 5), (1, 6)])]), quiet);
    assert_eq!(f.offsets(&request(id, 1, &[])), [(0, 5), (1, 6)]);
    assert_eq!(
        f.offsets(&request(id, 2, &[("a", &[(1, 60), (2, 70)])])),
        [(0, 5), (1, 60), (2, 70)]
    );
    assert_eq!(
        f.offsets(&forget(request(id, 3, &[]), "a", &[0, 9])),
        [(1, 60), (2, 70)]
    );
    let (new, told) = f.round(&request(id, 4, &[("b", &[(0, 0)])]), quiet);
    assert_eq!(new, id);
    // Never told of so far: 1 was only asked for anew.
    assert_eq!(told, [("a".to_owned(), 2), ("b".to_owned(), 0)]);
    let all = forget(request(id, 5, &[]), "a", &[1, 2]);
    let forgotten = [
        all.forgotten_topics_data.clone(),
        forget(all.clone(), "b", &[0]).forgotten_topics_data,
    ];
    let all = all.with_forgotten_topics_data(forgotten.concat());
    assert_eq!(f.round(&all, quiet), (0, vec![]), "an empty session ends");
    assert_eq!(f.sessions.len(), 0);
}

#[test]
fn wrong_ids_and_epochs_are_refused_and_leave_the_session_alone() {
    let mut f = fixture();
    let (id, _) = f.round(&request(0, 0, &[("a", &[(0, 5)])]), quiet);
    let error = |request: &FetchRequest| f.begin(request).unwrap_err();
    assert_eq!(
        error(&request(id + 1, 1, &[])),
        ResponseError::FetchSessionIdNotFound
    );
    assert_eq!(
        error(&request(id, 2, &[])),
        ResponseError::InvalidFetchSessionEpoch
    );
    let by_id = f.sessions.begin(&request(id, 1, &[]), true, f.now);
    assert_eq!(by_id.unwrap_err(), ResponseError::FetchSessionTopicIdError);
    assert_eq!(f.offsets(&request(id, 1, &[])), [(0, 5)]);
    assert_eq!(
        f.begin(&request(id, 1, &[])).unwrap_err(),
        ResponseError::InvalidFetchSessionEpoch
    );
    // A new session in place of the old one, then none.
    let (new, _) = f.round(&request(id, 0, &[("a", &[(0, 5)])]), quiet);
    assert_ne!(new, id);
    assert_eq!(f.sessions.len(), 1);
    let (none, told) = f.round(&request(new, -1, &[("a", &[(0, 5)])]), quiet);
    assert_eq!((none, told.len(), f.sessions.len()), (0, 1, 0));
}

#[test]
fn epochs_go_round_without_zero() {
    assert_eq!([next(INITIAL), next(7), next(i32::MAX)], [1, 8, 1]);
}

#[test]
fn a_full_cache_evicts_what_is_idle_or_small_and_had_its_time() {
    let mut f = fixture();
    let small = request(0, 0, &[("a", &[(0, 0)])]);
    let large = request(0, 0, &[("a", &[(0, 0), (1, 0)])]);
    let mut ids: Vec<i32> = (0..SESSIONS).map(|_| f.round(&small, quiet).0).collect();
    assert!(ids.iter().all(|id| *id > 0));
    assert_eq!(f.round(&large, quiet).0, 0, "all were just used");
    // All but one go on being used.
    f.now += KEEP + Duration::from_secs(1);
    let idle = ids.remove(3);
    for id in &ids {
        f.round(&request(*id, 1, &[]), quiet);
    }
    assert!(f.round(&small, quiet).0 > 0);
    assert_eq!(
        f.begin(&request(idle, 1, &[])).unwrap_err(),
        ResponseError::FetchSessionIdNotFound
    );
    assert_eq!(f.round(&small, quiet).0, 0, "none is idle, none is smaller");
    assert!(
        f.round(&large, quiet).0 > 0,
        "a larger one may take the place of a smaller one"
    );
    assert_eq!(f.sessions.len(), SESSIONS);
}

#[test]
fn long_names_are_counted_for_what_they_take() {
    let mut f = fixture();
    let long = "x".repeat(30_000);
    let (id, _) = f.round(
        &request(0, 0, &[(&long, &[(0, 0), (1, 0)]), ("short", &[(0, 0)])]),
        quiet,
    );
    let counted = |f: &Fixture| f.sessions.0.lock().partitions;
    assert_eq!(counted(&f), 2 * (1 + 30_000 / NAME) + 1);
    f.round(&request(id, 1, &[(&long, &[(2, 0)])]), quiet);
    assert_eq!(counted(&f), 3 * (1 + 30_000 / NAME) + 1);
    f.round(&forget(request(id, 2, &[]), &long, &[0, 1, 2]), quiet);
    assert_eq!(counted(&f), 1);
}

#[test]
fn sessions_are_bounded_in_size() {
    let mut f = fixture();
    let many: Vec<(i32, i64)> = (0..(PARTITIONS as i32 / 2)).map(|index| (index, 0)).collect();
    let (first, _) = f.round(&request(0, 0, &[("a", &many)]), quiet);
    assert!(first > 0);
    let (second, _) = f.round(&request(0, 0, &[("a", &many)]), quiet);
    assert!(second > 0);
    assert_eq!(f.round(&request(0, 0, &[("a", &[(0, 0)])]), quiet).0, 0);
    assert_eq!(
        f.begin(&request(first, 1, &[("b", &[(0, 0)])])).unwrap_err(),
        ResponseError::FetchSessionIdNotFound
    );
    assert!(f.round(&request(0, 0, &[("a", &[(0, 0)])]), quiet).0 > 0);
}
