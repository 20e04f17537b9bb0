//! Consumer groups and their members.

use std::ops::RangeInclusive;

use bytes::Bytes;
use e2e::wire::text;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::*;

use super::Case;
use super::requests::{join, offset_commit};
use super::side::Side;

pub const CASES: &[Case] = &[
    ("groups/life", life),
    ("groups/join-errors", join_errors),
    ("groups/member-errors", member_errors),
    ("groups/static", static_members),
    ("groups/rebalance", rebalance),
];

const JOIN: RangeInclusive<i16> = 0..=9;

pub fn group_id(group: &str) -> GroupId {
    GroupId(text(group))
}

fn heartbeat(group: &str, member: &str, generation: i32) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_generation_id(generation)
}

fn sync(version: i16, group: &str, member: &str, generation: i32, assigned: &[&str]) -> SyncGroupRequest {
    let assignment = |member: &&str| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(Bytes::from(format!(
                "for {}",
                member.split('-').next().unwrap_or_default()
            )))
    };
    let request = SyncGroupRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_generation_id(generation)
        .with_assignments(assigned.iter().map(assignment).collect());
    if version < 5 {
        return request;
    }
    request
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(Some(text("range")))
}

pub fn leave(version: i16, group: &str, members: &[(&str, Option<&str>)]) -> LeaveGroupRequest {
    let request = LeaveGroupRequest::default().with_group_id(group_id(group));
    if version < 3 {
        return request.with_member_id(text(members[0].0));
    }
    let identity = |(member, instance): &(&str, Option<&str>)| {
        MemberIdentity::default()
            .with_member_id(text(member))
            .with_group_instance_id(instance.map(text))
    };
    request.with_members(members.iter().map(identity).collect())
}

/// The only member of a group, and its generation; all it was answered is noted.
pub fn joined(
    side: &mut Side,
    version: i16,
    group: &str,
    instance: Option<&str>,
) -> anyhow::Result<(String, i32)> {
    let request = join(version, group, "", instance);
    let mut answer = side.ask(format!("{group} is joined"), version, &request)?;
    if answer.as_ref().is_some_and(|answer| answer.error_code == 79) {
        let member = answer.map(|answer| answer.member_id).unwrap_or_default();
        let request = join(version, group, &member, instance);
        answer = side.ask(format!("{group} is joined with an id"), version, &request)?;
    }
    let answer = answer.filter(|answer| answer.error_code == 0);
    let answer = answer.ok_or_else(|| anyhow::anyhow!("{group} cannot be joined"))?;
    Ok((answer.member_id.to_string(), answer.generation_id))
}

/// The same, with its assignment.
pub fn stable(side: &mut Side, group: &str) -> anyhow::Result<(String, i32)> {
    let (member, generation) = joined(side, 5, group, None)?;
    side.ask(
        format!("{group} is assigned"),
        3,
        &sync(3, group, &member, generation, &[&member]),
    )?;
    Ok((member, generation))
}

fn life(side: &mut Side) -> anyhow::Result<()> {
    side.topic("lived", 2, &[])?;
    for version in JOIN {
        let group = format!("life-{version}");
        let (member, generation) = joined(side, version, &group, None)?;
        let of = |last: i16| version.min(last);
        side.ask(
            "before the assignment",
            of(4),
            &heartbeat(&group, &member, generation),
        )?;
        let commit = offset_commit(&group, &member, generation, &[("lived", &[0])]);
        side.ask("commit before the assignment", of(9).max(2), &commit)?;
        let request = sync(of(5), &group, &member, generation, &[&member]);
        side.ask("assigned", of(5), &request)?;
        side.ask("assigned again", of(5), &request)?;
        side.ask("alive", of(4), &heartbeat(&group, &member, generation))?;
        let commit = offset_commit(&group, &member, generation, &[("lived", &[0, 1])]);
        side.ask("commit", of(9).max(2), &commit)?;
        // The leader of a stable group that joins again starts a rebalance.
        side.ask("joined again", version, &join(version, &group, &member, None))?;
        side.ask(
            "assigned of old",
            of(5),
            &sync(of(5), &group, &member, generation, &[&member]),
        )?;
        side.ask(
            "assigned anew",
            of(5),
            &sync(of(5), &group, &member, generation + 1, &[&member]),
        )?;
        side.ask("left", of(5), &leave(of(5), &group, &[(&member, None)]))?;
        side.ask("left again", of(5), &leave(of(5), &group, &[(&member, None)]))?;
        side.ask(
            "alive after that",
            of(4),
            &heartbeat(&group, &member, generation + 1),
        )?;
        // Into an empty group.
        joined(side, version, &group, None)?;
    }
    Ok(())
}

fn join_errors(side: &mut Side) -> anyhow::Result<()> {
    for version in [0, 3, 4, 5, 9] {
        let group = format!("join-{version}");
        let protocol = |name: &str| JoinGroupRequestProtocol::default().with_name(text(name));
        let plain = join(version, &group, "", None);
        side.ask("no group", version, &join(version, "", "", None))?;
        side.ask(
            "a member of nowhere",
            version,
            &join(version, "join-nowhere", "member-x", None),
        )?;
        side.ask("no protocol", version, &plain.clone().with_protocols(Vec::new()))?;
        side.ask(
            "no protocol type",
            version,
            &plain.clone().with_protocol_type(text("")),
        )?;
        for timeout in [-1, 0, 5_999, 1_800_001, i32::MAX] {
            side.ask(
                format!("session timeout {timeout}"),
                version,
                &plain.clone().with_session_timeout_ms(timeout),
            )?;
        }
        let (member, _) = joined(side, version, &group, None)?;
        side.ask(
            "another protocol",
            version,
            &plain.clone().with_protocols(vec![protocol("other")]),
        )?;
        side.ask(
            "another protocol type",
            version,
            &plain.clone().with_protocol_type(text("connect")),
        )?;
        side.ask(
            "unknown member",
            version,
            &join(version, &group, "member-x", None),
        )?;
        let changed = join(version, &group, &member, None).with_protocols(vec![protocol("other")]);
        side.ask("the only member with another protocol", version, &changed)?;
        let changed = changed.with_protocol_type(text("connect"));
        side.ask("the only member with another protocol type", version, &changed)?;
    }
    Ok(())
}

fn member_errors(side: &mut Side) -> anyhow::Result<()> {
    side.topic("member-errors", 1, &[])?;
    let (member, generation) = stable(side, "members")?;
    for (what, group, member, generation) in [
        ("unknown group", "no-members", member.as_str(), generation),
        ("no group", "", &member, generation),
        ("unknown member", "members", "member-x", generation),
        ("no member", "members", "", generation),
        ("generation too low", "members", &member, generation - 1),
        ("generation too high", "members", &member, generation + 1),
        ("no generation", "members", &member, -1),
        ("neither member nor generation", "members", "", -1),
    ] {
        for version in [0, 4] {
            side.ask(what, version, &heartbeat(group, member, generation))?;
        }
        for version in [0, 3, 5] {
            side.ask(what, version, &sync(version, group, member, generation, &[]))?;
            side.ask(
                what,
                version,
                &leave(
                    version,
                    if generation < 0 { "no-members" } else { group },
                    &[("member-x", None)],
                ),
            )?;
        }
        for version in [2, 5, 6, 9] {
            side.ask(
                what,
                version,
                &offset_commit(group, member, generation, &[("member-errors", &[0])]),
            )?;
        }
    }
    for (what, kind, name) in [
        ("protocol type", "connect", "range"),
        ("protocol", "consumer", "sticky"),
    ] {
        let request = sync(5, "members", &member, generation, &[])
            .with_protocol_type(Some(text(kind)))
            .with_protocol_name(Some(text(name)));
        side.ask(format!("another {what}"), 5, &request)?;
    }
    let request = sync(4, "members", &member, generation, &[]);
    side.ask("version 5 without a protocol", 5, &request)?;
    let instance = Some(text("stranger"));
    side.ask(
        "not static",
        3,
        &heartbeat("members", &member, generation).with_group_instance_id(instance.clone()),
    )?;
    side.ask(
        "not static",
        3,
        &sync(3, "members", &member, generation, &[]).with_group_instance_id(instance.clone()),
    )?;
    let commit = offset_commit("members", &member, generation, &[("member-errors", &[0])]);
    side.ask("not static", 7, &commit.with_group_instance_id(instance))?;
    side.ask(
        "leave as somebody static",
        3,
        &leave(
            3,
            "members",
            &[(&member, Some("stranger")), ("", Some("stranger")), ("", None)],
        ),
    )?;
    side.ask("leave with nobody", 3, &leave(3, "members", &[]))?;
    Ok(())
}

fn static_members(side: &mut Side) -> anyhow::Result<()> {
    for version in [5, 7, 9] {
        let group = format!("static-{version}");
        let of = |last: i16| version.min(last);
        let (old, generation) = joined(side, version, &group, Some("first"))?;
        let with = |request: SyncGroupRequest| request.with_group_instance_id(Some(text("first")));
        side.ask(
            "assigned",
            of(5),
            &with(sync(of(5), &group, &old, generation, &[&old])),
        )?;
        let (new, generation) = joined(side, version, &group, Some("first"))?;
        side.ask(
            "assigned after a restart",
            of(5),
            &with(sync(of(5), &group, &new, generation, &[])),
        )?;
        let beat =
            |member: &str| heartbeat(&group, member, generation).with_group_instance_id(Some(text("first")));
        side.ask("the old one is fenced", of(4), &beat(&old))?;
        side.ask("the new one lives", of(4), &beat(&new))?;
        side.ask(
            "the old one without its name",
            of(4),
            &heartbeat(&group, &old, generation),
        )?;
        side.ask(
            "the old one joins",
            version,
            &join(version, &group, &old, Some("first")),
        )?;
        side.ask(
            "the old one assigns",
            of(5),
            &with(sync(of(5), &group, &old, generation, &[])),
        )?;
        let commit = offset_commit(&group, &old, generation, &[]);
        side.ask(
            "the old one commits",
            7,
            &commit.with_group_instance_id(Some(text("first"))),
        )?;
        side.ask(
            "an unknown name",
            of(4),
            &beat(&new).with_group_instance_id(Some(text("second"))),
        )?;
        side.ask(
            "described",
            5,
            &DescribeGroupsRequest::default().with_groups(vec![group_id(&group)]),
        )?;
        side.ask(
            "the old one leaves",
            of(5),
            &leave(of(5), &group, &[(&old, Some("first"))]),
        )?;
        side.ask(
            "leaves by its name",
            of(5),
            &leave(of(5), &group, &[("", Some("first"))]),
        )?;
        side.ask(
            "leaves again",
            of(5),
            &leave(of(5), &group, &[("", Some("first"))]),
        )?;
    }
    Ok(())
}

/// The order of members is nobody's promise.
fn itself_first(answer: &mut JoinGroupResponse) {
    let own = answer.member_id.clone();
    answer.members.sort_by_key(|member| member.member_id != own);
}

fn rebalance(side: &mut Side) -> anyhow::Result<()> {
    for version in [2, 5, 9] {
        let group = format!("rebalance-{version}");
        let of = |last: i16| version.min(last);
        let (one, generation) = joined(side, version, &group, None)?;
        side.ask(
            "one is assigned",
            of(5),
            &sync(of(5), &group, &one, generation, &[&one]),
        )?;
        // The second has its id before it waits.
        let mut two = String::new();
        if version >= 4 {
            let answer = side.ask("two asks for an id", version, &join(version, &group, "", None))?;
            two = answer
                .map(|answer| answer.member_id.to_string())
                .unwrap_or_default();
        }
        side.ask("nothing has changed", of(4), &heartbeat(&group, &one, generation))?;
        let waiting = side.start(version, &join(version, &group, &two, None))?;
        side.until("a rebalance", |side| {
            let answer = side.quiet(of(4), &heartbeat(&group, &one, generation))?;
            Ok((answer.error_code == 27).then_some(()))
        })?;
        side.ask("one hears of it", of(4), &heartbeat(&group, &one, generation))?;
        side.ask(
            "one wants its assignment",
            of(5),
            &sync(of(5), &group, &one, generation, &[]),
        )?;
        side.ask("one commits", 5, &offset_commit(&group, &one, generation, &[]))?;
        let describe = DescribeGroupsRequest::default().with_groups(vec![group_id(&group)]);
        side.ask_tidy("preparing", 4, &describe, |answer| {
            // Who has an assignment first: their ids are each broker's own.
            let members = answer.groups.iter_mut().map(|group| &mut group.members);
            members.for_each(|members| members.sort_by_key(|member| member.member_assignment.is_empty()));
            Vec::new()
        })?;
        // Each is a leader's or a follower's answer by who came first.
        let again = side.start(version, &join(version, &group, &one, None))?;
        let first = side.finish::<JoinGroupRequest>("one joins again", again, itself_first)?;
        let second = side.finish::<JoinGroupRequest>("two joins", waiting, itself_first)?;
        let (two, generation) = (second.member_id.to_string(), first.generation_id);
        let describe = DescribeGroupsRequest::default().with_groups(vec![group_id(&group)]);
        side.ask_tidy("completing", 4, &describe, |answer| {
            answer.groups[0].members.clear();
            Vec::new()
        })?;
        let waiting = side.start(of(5), &sync(of(5), &group, &two, generation, &[]))?;
        side.ask(
            "one assigns",
            of(5),
            &sync(of(5), &group, &one, generation, &[&one, &two]),
        )?;
        side.finish::<SyncGroupRequest>("two is assigned", waiting, |_| ())?;
        side.ask(
            "the follower joins again",
            version,
            &join(version, &group, &two, None),
        )?;
        side.ask("two leaves", of(5), &leave(of(5), &group, &[(&two, None)]))?;
        side.ask("one hears of that", of(4), &heartbeat(&group, &one, generation))?;
        side.ask("one joins alone", version, &join(version, &group, &one, None))?;
    }
    Ok(())
}
