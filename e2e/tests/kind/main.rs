//! The system on a real Kubernetes cluster (kind), clients as pods. Run by `cargo xtask test` (feature `cluster`).
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "tests")]
