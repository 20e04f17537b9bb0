use super::OffsetStep::{Acked, Fetched, Sent};
use super::*;
use crate::History;

fn check(steps: &[OffsetStep]) -> Vec<Anomaly> {
    let h = History {
        commits: vec![steps.iter().map(|step| (0, *step)).collect()],
        ..History::default()
    };
    h.check(10)
}

#[test]
fn a_committed_offset_is_the_last_acknowledged_or_one_that_was_given_up() {
    assert_eq!(check(&[Fetched(-1), Sent(3), Acked(3), Fetched(3)]), []);
    assert_eq!(check(&[Sent(3), Acked(3), Sent(5), Fetched(3), Fetched(5)]), []);
    assert_eq!(check(&[Sent(3), Sent(5), Acked(5), Fetched(5)]), []);
    assert_eq!(
        check(&[Sent(3), Sent(5), Acked(5), Fetched(5), Fetched(3)]),
        [],
        "it came late"
    );
    assert_eq!(check(&[Sent(3), Acked(3), Fetched(-1)]).len(), 1, "forgotten");
    assert_eq!(
        check(&[Sent(3), Acked(3), Sent(5), Acked(5), Fetched(3)]).len(),
        1,
        "gone back"
    );
    assert_eq!(check(&[Sent(3), Acked(3), Fetched(4)]).len(), 1, "never sent");
}

#[test]
fn what_was_found_is_there_until_something_else_comes() {
    let replaced = [Sent(3), Acked(3), Sent(5), Fetched(5), Fetched(3)];
    assert_eq!(check(&replaced).len(), 1, "3 was replaced");
    let there_and_back = [Sent(3), Sent(5), Acked(5), Fetched(3), Fetched(5), Fetched(3)];
    assert_eq!(
        check(&there_and_back).len(),
        1,
        "3 came after 5, which comes once"
    );
    let again = [
        Sent(3),
        Fetched(3),
        Sent(3),
        Acked(3),
        Sent(5),
        Acked(5),
        Fetched(3),
    ];
    assert_eq!(check(&again).len(), 1, "both of them were there before 5");
}
