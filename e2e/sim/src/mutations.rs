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
    (
        "wrong-repeat",
        "a repeated commit is answered with other offsets than the first",
    ),
    (
        "revive-offsets",
        "offsets of a deleted topic may still be committed",
    ),
    (
        "format-early",
        "new formats are written before they are finalised",
    ),
    (
        "trim-unlogged",
        "a deletion of records is answered and not logged",
    ),
    (
        "forget-hand-over",
        "files that are dead in one shard are never handed to the next",
    ),
    (
        "lose-owner",
        "a file is handed over to its next owner without the others",
    ),
    (
        "retention-one-more",
        "retention by bytes takes one batch too many",
    ),
    (
        "expire-producers",
        "producers are forgotten as soon as they pause",
    ),
    (
        "rollback-half",
        "what was judged and given up still counts for producers",
    ),
    ("forget-epochs", "a producer may go on in an epoch that is over"),
    ("accept-gaps", "a batch may come before its predecessor"),
    (
        "take-over-live",
        "a file that is handed over counts as dead, whatever this shard has of it",
    ),
    (
        "keep-window",
        "what a broker knows of a shard's end survives a gap in the news",
    ),
    (
        "commit-loser",
        "of two uploads of a segment the first is committed, not the one that has ended",
    ),
    ("trust-reads", "what the store gives is served without a check"),
    (
        "wrong-object",
        "batches are cut from another object than the one that holds them",
    ),
    (
        "time-by-batch",
        "ListOffsets for a time does not look into the batch",
    ),
    ("zombie-commits", "whoever once was a member may commit offsets"),
    (
        "forget-sagas",
        "a new controller does not go on with what the one before has begun",
    ),
    (
        "snapshot-without-producers",
        "a state that comes from a snapshot knows no producers",
    ),
    ("believe-follower", "a follower is believed though it is behind"),
    (
        "guess-group-shard",
        "a broker that has heard of no shards yet asks the first one for a group",
    ),
    // Of the engine `postgres`.
    (
        "lost-reply-counts",
        "an append to the database whose answer is lost counts as done",
    ),
    (
        "foreign-slot-counts",
        "an append that the database refuses counts as done if there is a slot in its place",
    ),
    (
        "replace-blind",
        "a manifest in the database is replaced whatever it is",
    ),
];
