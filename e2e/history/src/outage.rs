//! What was promised to work, and did not for too long.

use crate::{Anomaly, History, Place};

/// A span of time, in ms of whatever clock the test has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Its beginning.
    pub from: i64,
    /// Its end.
    pub to: i64,
}

/// Something that a client wanted, from its first try to its success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// For the report.
    pub what: String,
    /// How long it took.
    pub span: Span,
}

impl History {
    /// How long a consumer has waited by `now` for the record at `place`, having asked for it since `asked`: from its
    /// acknowledgement on. `None`: nobody has promised it.
    pub fn waited(&self, place: Place, asked: i64, now: i64) -> Option<Span> {
        let acked = *self.acked_at.get(&place)?;
        let from = acked.max(asked);
        (from < now).then_some(Span { from, to: now })
    }
}

/// Operations that took longer than `limit` (ms), not counting the time in which something was broken on purpose
/// (`faults`) and `recovery` (ms) after each.
pub fn check_outages(operations: &[Operation], faults: &[Span], recovery: i64, limit: i64) -> Vec<Anomaly> {
    let mut excused: Vec<Span> = faults
        .iter()
        .map(|fault| Span {
            from: fault.from,
            to: fault.to + recovery,
        })
        .collect();
    excused.sort_unstable();
    let late = operations
        .iter()
        .filter(|operation| unexcused(operation.span, &excused) > limit);
    late.map(|operation| Anomaly::Unavailable {
        what: operation.what.clone(),
        from: operation.span.from,
        to: operation.span.to,
    })
    .collect()
}

/// The part of `span` that no span of `excused` (sorted by beginning) covers.
fn unexcused(span: Span, excused: &[Span]) -> i64 {
    let mut left = 0;
    let mut at = span.from;
    for excuse in excused {
        if excuse.from >= span.to {
            break;
        }
        left += (excuse.from - at).max(0);
        at = at.max(excuse.to);
    }
    left + (span.to - at).max(0)
}
