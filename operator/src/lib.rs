//! The Kubernetes operator: keeps what runs in line with `DisklessCluster` and `DisklessTopic` objects.
//!
//! ```text
//!  watches ──▶ stores ──▶ reconcile: dereference ─▶ validate ─▶ build / plan ─▶ apply ─▶ status
//!                              (I/O)      (pure)        (pure)      (I/O)    (only if changed)
//! ```
//!
//! Two controllers, one for each kind. That of clusters makes Kubernetes objects and takes pods down one at a time; that
//! of topics talks to the brokers in Kafka's own admin protocol. Neither keeps state of its own: a restart, or another
//! replica that takes over the lease, goes on from what is there. What is as it should be causes no writes.

pub mod admin;
pub mod cli;
pub mod context;
pub mod controllers;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod telemetry;
