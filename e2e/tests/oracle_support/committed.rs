//! What groups have committed, and what is told of them.

use e2e::wire::{text, topic_name};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::*;

use super::Case;
use super::groups::{group_id, joined, leave, stable};
use super::requests::{offset_commit, offset_fetch};
use super::side::Side;

pub const CASES: &[Case] = &[
    ("committed/offsets", offsets),
    ("committed/many", many_offsets),
    ("committed/describe", describe),
    ("committed/delete", delete),
    ("committed/delete-offsets", delete_offsets),
];

fn offsets(side: &mut Side) -> anyhow::Result<()> {
    side.topic("kept", 2, &[])?;
    for version in 2..=9 {
        let group = format!("offsets-{version}");
        let commit = |topics: &[(&str, &[i32])]| offset_commit(&group, "", -1, topics);
        side.ask("by nobody", version, &commit(&[("kept", &[0])]))?;
        let request = commit(&[("kept", &[1, 5, -1]), ("nowhere", &[0])]);
        side.ask_tidy("some unknown", version, &request, |answer| {
            for topic in &mut answer.topics {
                topic
                    .partitions
                    .sort_by_key(|partition| partition.partition_index);
            }
            Vec::new()
        })?;
        side.ask("all unknown", version, &commit(&[("nowhere", &[0, 1])]))?;
        side.ask("no name", version, &commit(&[("", &[0])]))?;
        side.ask("no topics", version, &commit(&[]))?;
        side.ask("no partitions", version, &commit(&[("kept", &[])]))?;
        side.ask("no group", version, &offset_commit("", "", -1, &[("kept", &[0])]))?;
        side.ask(
            "a generation nobody has",
            version,
            &offset_commit(&format!("{group}-none"), "", 5, &[("kept", &[0])]),
        )?;
        side.ask(
            "a member nobody is",
            version,
            &offset_commit(&format!("{group}-none"), "x", -1, &[("kept", &[0])]),
        )?;
        for (what, offset, metadata) in [
            ("a negative offset", -5, Some("noted".to_owned())),
            ("the largest offset", i64::MAX, Some(String::new())),
            ("no metadata", 3, None),
            ("much metadata", 4, Some("x".repeat(4096))),
            ("too much metadata", 5, Some("x".repeat(4097))),
        ] {
            let mut request = commit(&[("kept", &[0])]);
            let partition = &mut request.topics[0].partitions[0];
            partition.committed_offset = offset;
            partition.committed_metadata = metadata.as_deref().map(text);
            side.ask(what, version, &request)?;
            side.ask(
                format!("what is kept after {what}"),
                5,
                &offset_fetch(&group, Some(&[("kept", &[0])])),
            )?;
        }
        let mut request = commit(&[("kept", &[0])]);
        if version >= 6 {
            request.topics[0].partitions[0].committed_leader_epoch = 3;
        }
        side.ask("with an epoch", version, &request)?;
        for fetch_version in 1..=7 {
            let mut ask = |what: &str, request: OffsetFetchRequest| {
                side.ask_tidy(what, fetch_version, &request, |answer| {
                    answer.topics.iter_mut().for_each(|topic| {
                        topic
                            .partitions
                            .sort_by_key(|partition| partition.partition_index)
                    });
                    Vec::new()
                })
            };
            ask(
                "some",
                offset_fetch(&group, Some(&[("kept", &[1, 0, 7, -1]), ("nowhere", &[0])])),
            )?;
            ask("none", offset_fetch(&group, Some(&[])))?;
            ask("no partitions", offset_fetch(&group, Some(&[("kept", &[])])))?;
            ask("unknown group", offset_fetch("never", Some(&[("kept", &[0])])))?;
            ask("no group", offset_fetch("", Some(&[("kept", &[0])])))?;
            if fetch_version >= 2 {
                ask("all", offset_fetch(&group, None))?;
                ask("all of an unknown group", offset_fetch("never", None))?;
            }
            if fetch_version >= 7 {
                ask(
                    "stable ones",
                    offset_fetch(&group, Some(&[("kept", &[0])])).with_require_stable(true),
                )?;
            }
        }
    }
    Ok(())
}

fn many_offsets(side: &mut Side) -> anyhow::Result<()> {
    side.topic("kept-too", 2, &[])?;
    for group in ["many-a", "many-b"] {
        side.ask(
            "committed",
            9,
            &offset_commit(group, "", -1, &[("kept-too", &[0, 1])]),
        )?;
    }
    let (member, generation) = stable(side, "many-c")?;
    let topics = |partitions: &[i32]| {
        let topic = OffsetFetchRequestTopics::default()
            .with_name(topic_name("kept-too"))
            .with_partition_indexes(partitions.to_vec());
        Some(vec![topic])
    };
    let of = |group: &str| OffsetFetchRequestGroup::default().with_group_id(group_id(group));
    for version in 8..=9 {
        let mut ask = |what: &str, groups: Vec<OffsetFetchRequestGroup>| {
            let request = OffsetFetchRequest::default().with_groups(groups);
            side.ask_tidy(what, version, &request, |answer| {
                answer.groups.sort_by_key(|group| group.group_id.clone());
                let topics = answer.groups.iter_mut().flat_map(|group| &mut group.topics);
                topics.for_each(|topic| {
                    topic
                        .partitions
                        .sort_by_key(|partition| partition.partition_index)
                });
                Vec::new()
            })
        };
        ask("one group", vec![of("many-a").with_topics(topics(&[0, 1, 5]))])?;
        ask("all of it", vec![of("many-a").with_topics(None)])?;
        ask(
            "two groups",
            vec![
                of("many-a").with_topics(None),
                of("many-b").with_topics(topics(&[1])),
            ],
        )?;
        ask(
            "one is unknown",
            vec![
                of("many-a").with_topics(topics(&[0])),
                of("never").with_topics(topics(&[0])),
            ],
        )?;
        ask("all of an unknown one", vec![of("never").with_topics(None)])?;
        ask("no group", Vec::new())?;
        ask("a group without a name", vec![of("").with_topics(topics(&[0]))])?;
        ask("no topics", vec![of("many-a").with_topics(Some(Vec::new()))])?;
        if version >= 9 {
            let by = |member: &str, epoch| {
                of("many-c")
                    .with_topics(topics(&[0]))
                    .with_member_id(Some(text(member)))
                    .with_member_epoch(epoch)
            };
            ask("by its member", vec![by(&member, generation)])?;
            ask("by its member, of old", vec![by(&member, generation - 1)])?;
            ask("by a stranger", vec![by("member-x", 1)])?;
        }
    }
    Ok(())
}

fn describe(side: &mut Side) -> anyhow::Result<()> {
    side.topic("described-offsets", 1, &[])?;
    stable(side, "shown-stable")?;
    joined(side, 5, "shown-completing", None)?;
    let (member, _) = stable(side, "shown-empty")?;
    side.ask("left", 3, &leave(3, "shown-empty", &[(&member, None)]))?;
    side.ask(
        "committed",
        5,
        &offset_commit("shown-offsets", "", -1, &[("described-offsets", &[0])]),
    )?;
    for version in 0..=6 {
        for group in [
            "shown-stable",
            "shown-completing",
            "shown-empty",
            "shown-offsets",
            "shown-never",
            "",
        ] {
            let request = DescribeGroupsRequest::default().with_groups(vec![group_id(group)]);
            side.ask(format!("describe '{group}'"), version, &request)?;
            if version >= 3 {
                side.ask(
                    format!("describe '{group}' with operations"),
                    version,
                    &request.with_include_authorized_operations(true),
                )?;
            }
        }
        side.ask("describe nothing", version, &DescribeGroupsRequest::default())?;
    }
    for version in 0..=5 {
        let mut ask = |what: &str, states: &[&str], types: &[&str]| {
            let request = ListGroupsRequest::default()
                .with_states_filter(states.iter().map(|state| text(state)).collect())
                .with_types_filter(types.iter().map(|kind| text(kind)).collect());
            side.ask_tidy(format!("list {what}"), version, &request, |answer| {
                answer.groups.retain(|group| group.group_id.starts_with("shown"));
                answer.groups.sort_by_key(|group| group.group_id.clone());
                Vec::new()
            })
        };
        ask("all", &[], &[])?;
        if version >= 4 {
            for state in [
                "Stable",
                "stable",
                "Empty",
                "CompletingRebalance",
                "Dead",
                "Nothing",
                "",
            ] {
                ask(&format!("state '{state}'"), &[state], &[])?;
            }
            ask("two states", &["Empty", "Stable"], &[])?;
        }
        if version >= 5 {
            for kind in ["classic", "Classic", "consumer", "share", "nothing"] {
                ask(&format!("type '{kind}'"), &[], &[kind])?;
            }
        }
    }
    Ok(())
}

fn delete(side: &mut Side) -> anyhow::Result<()> {
    side.topic("deleted-offsets", 1, &[])?;
    for version in 0..=2 {
        let (busy, idle, offsets) = (
            format!("busy-{version}"),
            format!("idle-{version}"),
            format!("only-{version}"),
        );
        stable(side, &busy)?;
        let (member, _) = stable(side, &idle)?;
        side.ask("left", 3, &leave(3, &idle, &[(&member, None)]))?;
        side.ask(
            "committed",
            5,
            &offset_commit(&offsets, "", -1, &[("deleted-offsets", &[0])]),
        )?;
        let mut ask = |what: &str, groups: &[&str]| {
            let request = DeleteGroupsRequest::default()
                .with_groups_names(groups.iter().map(|group| group_id(group)).collect());
            side.ask_tidy(what, version, &request, |answer| {
                answer.results.sort_by_key(|group| group.group_id.clone());
                Vec::new()
            })
        };
        ask("with members", &[&busy])?;
        ask("unknown", &["never"])?;
        ask("no name", &[""])?;
        ask("nothing", &[])?;
        ask("all", &[&busy, &idle, &offsets, "never"])?;
        ask("again", &[&idle, &offsets])?;
        side.ask("nothing is left", 5, &offset_fetch(&offsets, None))?;
    }
    Ok(())
}

fn delete_offsets(side: &mut Side) -> anyhow::Result<()> {
    side.topic("dropped", 2, &[])?;
    side.topic("dropped-too", 1, &[])?;
    let (member, generation) = stable(side, "drops-member")?;
    side.ask(
        "committed",
        5,
        &offset_commit("drops-member", &member, generation, &[("dropped", &[0, 1])]),
    )?;
    side.ask(
        "committed",
        5,
        &offset_commit("drops", "", -1, &[("dropped", &[0, 1]), ("dropped-too", &[0])]),
    )?;
    for (what, group, topics) in [
        ("unknown group", "never", &[("dropped", &[0][..])][..]),
        ("no group", "", &[("dropped", &[0])]),
        ("of a group with members", "drops-member", &[("dropped", &[0])]),
        (
            "some unknown",
            "drops",
            &[("dropped", &[0, 7]), ("nowhere", &[0])],
        ),
        ("again", "drops", &[("dropped", &[0])]),
        ("nothing", "drops", &[]),
        ("no partitions", "drops", &[("dropped", &[])]),
    ] {
        let topic = |(name, partitions): &(&str, &[i32])| {
            let partition =
                |index: &i32| OffsetDeleteRequestPartition::default().with_partition_index(*index);
            OffsetDeleteRequestTopic::default()
                .with_name(topic_name(name))
                .with_partitions(partitions.iter().map(partition).collect())
        };
        let request = OffsetDeleteRequest::default()
            .with_group_id(group_id(group))
            .with_topics(topics.iter().map(topic).collect());
        side.ask_tidy(what, 0, &request, |answer| {
            answer.topics.sort_by_key(|topic| topic.name.clone());
            answer.topics.iter_mut().for_each(|topic| {
                topic
                    .partitions
                    .sort_by_key(|partition| partition.partition_index)
            });
            Vec::new()
        })?;
    }
    side.ask_tidy("what is left", 5, &offset_fetch("drops", None), |answer| {
        answer.topics.sort_by_key(|topic| topic.name.clone());
        Vec::new()
    })?;
    Ok(())
}
