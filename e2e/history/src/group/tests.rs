use super::*;

fn own(member: &str, generation: i32, partitions: &[i32], from: i64) -> Ownership {
    Ownership {
        member: member.to_owned(),
        generation,
        leads: false,
        partitions: partitions.to_vec(),
        span: Span { from, to: from + 10 },
    }
}

/// A history in which everybody owns what it was given.
fn owning(ownerships: Vec<Ownership>) -> GroupHistory {
    let given = ownerships
        .iter()
        .map(|own| {
            let plan = [(own.member.clone(), own.partitions.clone())];
            (own.generation, plan.into())
        })
        .collect();
    GroupHistory {
        ownerships,
        given,
        ..GroupHistory::default()
    }
}

#[test]
fn a_partition_has_one_owner_in_a_generation() {
    let mut h = owning(vec![
        own("a", 1, &[0, 1], 0),
        own("b", 1, &[2], 0),
        own("b", 2, &[1, 2], 20),
        // Its answer was lost, it asked again.
        own("b", 2, &[1, 2], 40),
        own("c", 2, &[], 20),
    ]);
    assert_eq!(h.check(10), []);
    h = owning(vec![own("a", 1, &[0, 1], 0), own("b", 1, &[1], 0)]);
    let shared = Anomaly::SharedPartition {
        generation: 1,
        partition: 1,
        first: "a".to_owned(),
        second: "b".to_owned(),
    };
    assert_eq!(h.check(10), [shared]);
}

#[test]
fn a_generation_has_one_leader() {
    let leading = |mut own: Ownership| {
        own.leads = true;
        own
    };
    let mut h = owning(vec![
        leading(own("a", 1, &[0], 0)),
        own("b", 1, &[1], 0),
        leading(own("b", 2, &[1], 20)),
    ]);
    assert_eq!(h.check(10), []);
    h = owning(vec![leading(own("a", 1, &[0], 0)), leading(own("b", 1, &[1], 0))]);
    let two = Anomaly::TwoLeaders {
        generation: 1,
        first: "a".to_owned(),
        second: "b".to_owned(),
    };
    assert_eq!(h.check(10), [two]);
}

#[test]
fn a_member_owns_what_the_leader_gave_to_it() {
    let plan = |plan: &[(&str, &[i32])]| {
        plan.iter()
            .map(|(member, partitions)| ((*member).to_owned(), partitions.to_vec()))
            .collect::<BTreeMap<_, _>>()
    };
    let mut h = GroupHistory {
        ownerships: vec![own("a", 1, &[0], 0), own("b", 1, &[1], 0)],
        // The first plan was never stored: after a take-over the same generation has come again.
        given: vec![
            (1, plan(&[("a", &[0, 1])])),
            (1, plan(&[("a", &[0]), ("b", &[1])])),
        ],
        ..GroupHistory::default()
    };
    assert_eq!(h.check(10), []);
    let wrong = |generation, partitions: &[i32]| Anomaly::WrongAssignment {
        generation,
        member: "b".to_owned(),
        partitions: partitions.to_vec(),
    };
    h.ownerships.push(own("b", 2, &[1], 20));
    assert_eq!(h.check(10), [wrong(2, &[1])], "the plan of another generation");
    h.ownerships.pop();
    h.ownerships[1].partitions.clear();
    assert_eq!(h.check(10), [wrong(1, &[])], "it was given one and got none");
}

#[test]
fn generations_do_not_go_back() {
    let mut h = owning(vec![
        own("a", 4, &[0], 100),
        // Under way at the same time: either may have been first.
        own("b", 3, &[1], 105),
        own("c", 4, &[1], 200),
    ]);
    assert_eq!(h.check(10), []);
    h = owning(vec![own("a", 4, &[0], 100), own("b", 3, &[1], 111)]);
    assert_eq!(h.check(10), [Anomaly::GenerationBack { before: 4, after: 3 }]);
}

#[test]
fn what_is_acknowledged_is_consumed() {
    let place = |offset| Place { partition: 0, offset };
    let topic = History {
        acked: [(7, place(0)), (8, place(1))].into(),
        ..History::default()
    };
    let mut h = GroupHistory {
        reads: [(7, place(0)), (8, place(1)), (9, place(2))].into(),
        ..GroupHistory::default()
    };
    assert_eq!(h.unconsumed(&topic, 10), []);
    h.reads.remove(&(7, place(0)));
    let unconsumed = Anomaly::Unconsumed {
        value: 7,
        place: place(0),
    };
    assert_eq!(h.unconsumed(&topic, 10), [unconsumed]);
    let trimmed = History {
        trimmed: [(0, 1)].into(),
        ..topic
    };
    assert_eq!(h.unconsumed(&trimmed, 10), [], "it was deleted before");
}

fn commit(generation: i32, offset: i64, sent: i64, acked: Option<i64>) -> Commit {
    Commit {
        partition: 0,
        offset,
        generation,
        sent,
        acked,
    }
}

/// Whether `offset` may be what is committed, as asked for from 100 to 110.
fn may_be(commits: &[Commit], offset: i64) -> bool {
    let h = GroupHistory {
        commits: commits.to_vec(),
        fetches: vec![Fetch {
            partition: 0,
            offset,
            span: Span { from: 100, to: 110 },
        }],
        ..GroupHistory::default()
    };
    match h.check(10).as_slice() {
        [] => true,
        [Anomaly::WrongCommit { fetched, .. }] if *fetched == offset => false,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn a_committed_offset_is_that_of_the_last_commit() {
    assert!(may_be(&[], -1) && !may_be(&[], 3));
    let commits = [commit(1, 3, 10, Some(20)), commit(1, 5, 30, Some(40))];
    assert!(may_be(&commits, 5));
    assert!(!may_be(&commits, 3) && !may_be(&commits, -1) && !may_be(&commits, 4));
    let of_another = Commit {
        partition: 1,
        ..commit(1, 4, 50, Some(60))
    };
    assert!(!may_be(&[commits[0], of_another], 4));
}

#[test]
fn a_commit_that_is_under_way_may_be_there_or_not() {
    let commits = [commit(1, 3, 10, Some(20)), commit(1, 5, 95, Some(105))];
    assert!(may_be(&commits, 3) && may_be(&commits, 5) && !may_be(&commits, -1));
    let later = [commit(1, 3, 10, Some(20)), commit(1, 5, 111, Some(120))];
    assert!(may_be(&later, 3) && !may_be(&later, 5));
}

#[test]
fn a_commit_that_was_given_up_may_come_late_but_not_into_a_later_generation() {
    let same = [commit(1, 3, 10, None), commit(1, 5, 30, Some(40))];
    assert!(may_be(&same, 3) && may_be(&same, 5));
    let next = [commit(1, 3, 10, None), commit(2, 5, 30, Some(40))];
    assert!(may_be(&next, 5));
    assert!(!may_be(&next, 3), "its generation was over");
    let paused = [commit(2, 5, 30, Some(40)), commit(1, 3, 50, None)];
    assert!(
        !may_be(&paused, 3),
        "a member that slept has committed over the next"
    );
}

#[test]
fn a_generation_that_is_over_commits_nothing() {
    let h = |commits: Vec<Commit>| GroupHistory {
        commits,
        // From 20 to 30.
        ..owning(vec![own("a", 1, &[0], 0), own("b", 2, &[0], 20)])
    };
    // While the next one was forming, and in the next one, and refused.
    let right = vec![
        commit(1, 3, 30, Some(50)),
        commit(2, 4, 50, Some(60)),
        commit(1, 5, 50, None),
    ];
    assert_eq!(h(right).check(10), []);
    let late = Anomaly::LateCommit {
        partition: 0,
        offset: 3,
        generation: 1,
        later: 2,
    };
    assert_eq!(h(vec![commit(1, 3, 50, Some(60))]).check(10), [late]);
}
