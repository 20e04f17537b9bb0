//! The deliberate bugs that the simulation must find, each behind `env::mutation` at the place that prevents it.

/// Names, and what each breaks.
pub const MUTATIONS: &[(&str, &str)] = &[
    (
        "ack-before-durable",
        "a command is answered before its slot is durable",
    ),
    ("skip-fence", "a new leader writes no fencing slot"),
    ("forget-dedupe", "a new leader knows no producers"),
    ("delete-without-grace", "dead objects are deleted at once"),
    (
        "delete-shared-file",
        "the first owner of a file deletes it without asking the others",
    ),
    (
        "serve-speculative",
        "what is judged is applied before its slot is durable",
    ),
    (
        "ignore-must-follow",
        "a batch whose predecessor was lost may be a producer's first",
    ),
    ("reuse-epoch", "a new leader takes the epoch of the one before"),
    ("apply-out-of-order", "entries of a slot are applied backwards"),
    (
        "trim-above-snapshot",
        "the log is deleted beyond the newest snapshot",
    ),
    ("skip-commit-order", "segments are committed as their uploads end"),
    (
        "same-producer-ids",
        "the controller gives every broker the same producer ids",
    ),
    ("list-without-barrier", "ListOffsets does not confirm leadership"),
    (
        "append-time-back",
        "log-append time follows the clock wherever it goes",
    ),
    (
        "commit-unwritten",
        "a segment is committed though its upload failed",
    ),
    ("forget-offsets", "a new leader knows no committed offsets"),
    ("forget-groups", "a new leader knows no members and no generation"),
];
