//! The same requests to Apache Kafka and to us, in many versions: the answers are the same, field by field, but for a
//! short list of differences that are meant.
//!
//! `ORACLE_CASES=produce/` runs only the cases that begin so, and prints every answer.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests"
)]

#[path = "oracle_support/mod.rs"]
mod support;

use std::fmt::Write as _;

use support::intended::INTENDED;
use support::servers::Server;
use support::side::{Side, Step};
use support::{Difference, cases, differences};

fn answers(address: &str, only: Option<&str>) -> anyhow::Result<Vec<Step>> {
    let mut side = Side::new(address)?;
    side.wait_until_ready()?;
    for (name, run) in cases().filter(|(name, _)| only.is_none_or(|only| name.starts_with(only))) {
        side.begin(name)?;
        if let Err(error) = run(&mut side) {
            side.note("the end of the case", vec![(String::new(), format!("{error:#}"))]);
        }
    }
    Ok(side.steps)
}

#[test]
fn answers_are_those_of_apache_kafka() -> anyhow::Result<()> {
    let only = std::env::var("ORACLE_CASES").ok();
    let only = only.as_deref();
    let (kafka, ours) = (Server::kafka()?, Server::ours()?);
    let (kafka, ours) = std::thread::scope(|scope| {
        let kafka = scope.spawn(|| answers(&kafka.address, only));
        let ours = answers(&ours.address, only);
        (kafka.join().expect("no panic"), ours)
    });
    let (kafka, ours) = (kafka?, ours?);
    if only.is_some() {
        print(&kafka, "kafka");
        print(&ours, "ours");
    }
    let mut used = vec![0; INTENDED.len()];
    let mut unexpected = Vec::new();
    for difference in differences(&kafka, &ours) {
        let answers = (
            difference.kafka.compared.as_str(),
            difference.ours.compared.as_str(),
        );
        let fits = |(_, intended): &(usize, &support::intended::Intended)| {
            intended.fits(difference.case, &difference.step, &difference.path, answers)
        };
        match INTENDED.iter().enumerate().find(fits) {
            Some((index, _)) => used[index] += 1,
            None => unexpected.push(difference),
        }
    }
    println!("{} answers compared; differences by reason:", kafka.len());
    for (intended, count) in INTENDED.iter().zip(&used) {
        println!("{count:6}  {}", intended.reason);
    }
    let idle = INTENDED.iter().zip(&used).filter(|(_, count)| **count == 0);
    let idle: Vec<_> = idle
        .map(|(intended, _)| (intended.case, intended.step, intended.path))
        .collect();
    assert!(unexpected.is_empty(), "{}", report(&unexpected));
    assert!(
        only.is_some() || idle.is_empty(),
        "these differ no longer: {idle:?}"
    );
    Ok(())
}

fn print(steps: &[Step], who: &str) {
    for step in steps {
        println!("{who} | {} | {}", step.case, step.step);
        for (path, value) in &step.fields {
            println!("{who} |     {path} = {}", value.raw);
        }
    }
}

fn report(differences: &[Difference]) -> String {
    let mut out = format!("{} fields differ:\n", differences.len());
    let mut last = None;
    for Difference {
        case,
        step,
        path,
        kafka,
        ours,
    } in differences
    {
        if last != Some((case, step)) {
            let _ = writeln!(out, "{case}: {step}");
            last = Some((case, step));
        }
        let _ = writeln!(out, "    {path}: Kafka {}, we {}", kafka.raw, ours.raw);
    }
    out
}
