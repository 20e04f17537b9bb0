//! From a frame to the file of its API.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use kafka_wire::frame::RequestHeader;
use kafka_wire::{RequestKind, request, response};

use super::Api;
use super::call::Call;
use crate::net::frames::Frame;
use crate::net::memory::Memory;
use crate::net::{Answer, Handler, Peer, Taken};

/// Clients give up after 30 seconds (`request.timeout.ms`).
const EARLY: Duration = Duration::from_secs(30);

impl Handler for Api {
    fn handle(&self, peer: &Peer, frame: Frame) -> Taken {
        let Frame { bytes, memory } = frame;
        let (call, request) = match parse(peer, bytes) {
            Ok(parsed) => parsed,
            Err(answer) => return Taken::Now(std::future::ready(answer).boxed()),
        };
        let metrics = self.metrics.api(call.header.api_key).cloned();
        let (env, start) = (self.env.clone(), self.env.instant());
        let taken = match request {
            RequestKind::ApiVersions(_) => self.take(call, request, memory),
            _ if self.metadata.is_known() => self.take(call, request, memory),
            _ => self.take_later(call, request, memory),
        };
        let measured = move |answer: BoxFuture<'static, Answer>| {
            let measured = async move {
                let answer = answer.await;
                if let Some(metrics) = metrics {
                    metrics.requests.inc();
                    metrics
                        .latency
                        .observe(env.instant().saturating_duration_since(start).as_secs_f64());
                }
                answer
            };
            measured.boxed()
        };
        taken.map(measured)
    }
}

impl Api {
    fn take(&self, call: Call, request: RequestKind, memory: Option<Memory>) -> Taken {
        match request {
            // The only one that acts at once: batches must enter the buffer in the order they came in.
            RequestKind::Produce(request) => self.produce(call, request, memory),
            other => {
                let api = self.clone();
                let answer = async move {
                    let _memory = memory;
                    api.answer(call, other).await
                };
                Taken::Now(answer.boxed())
            }
        }
    }

    /// A node that has not heard of the cluster yet would deny every topic and every group. As at a broker of Kafka, who comes
    /// so early waits: some of the answers would end clients. Whoever has waited for [`EARLY`] has given up, or asks another broker:
    /// what it wanted written must not come later than what it has written since.
    fn take_later(&self, call: Call, request: RequestKind, memory: Option<Memory>) -> Taken {
        let api = self.clone();
        let taking = async move {
            tokio::select! {
                biased;
                () = api.metadata.clone().known() => {}
                () = api.draining.cancelled() => return Taken::Now(std::future::ready(Answer::Close).boxed()),
                () = api.env.sleep(EARLY) => return Taken::Now(std::future::ready(Answer::Close).boxed()),
            }
            api.take(call, request, memory)
        };
        Taken::Later(taking.boxed())
    }
}

pub(super) fn parse(peer: &Peer, bytes: Bytes) -> Result<(Call, RequestKind), Answer> {
    let refuse = |error: &dyn std::fmt::Display| {
        tracing::debug!(peer = %peer.host, %error, "request refused");
        Answer::Close
    };
    let header = RequestHeader::parse(&bytes).map_err(|error| refuse(&error))?;
    if header.wants_api_versions_fallback() {
        let answer = response::unsupported_api_versions(header.correlation_id);
        return Err(answer.map_or(Answer::Close, Answer::Reply));
    }
    // An API or a version that is not served ends the connection, as in Kafka.
    let request = request::decode(&header, &bytes).map_err(|error| refuse(&error))?;
    Ok((
        Call {
            peer: peer.clone(),
            header,
            frame: bytes,
        },
        request,
    ))
}

impl Api {
    async fn answer(&self, call: Call, request: RequestKind) -> Answer {
        match request {
            RequestKind::Fetch(request) => self.fetch(call, request).await,
            RequestKind::ListOffsets(request) => self.list_offsets(call, request).await,
            RequestKind::Metadata(request) => self.metadata(call, request).await,
            RequestKind::OffsetCommit(request) => self.offset_commit(call, request).await,
            RequestKind::OffsetFetch(request) => self.offset_fetch(call, request).await,
            RequestKind::FindCoordinator(request) => self.find_coordinator(call, request),
            RequestKind::JoinGroup(request) => self.join_group(call, request).await,
            RequestKind::Heartbeat(request) => self.heartbeat(call, request).await,
            RequestKind::LeaveGroup(request) => self.leave_group(call, request).await,
            RequestKind::SyncGroup(request) => self.sync_group(call, request).await,
            RequestKind::DescribeGroups(request) => self.describe_groups(call, request).await,
            RequestKind::ListGroups(request) => self.list_groups(call, request).await,
            RequestKind::DeleteGroups(request) => self.delete_groups(call, request).await,
            RequestKind::ApiVersions(request) => self.api_versions(call, request),
            RequestKind::CreateTopics(request) => self.create_topics(call, request).await,
            RequestKind::DeleteTopics(request) => self.delete_topics(call, request).await,
            RequestKind::DeleteRecords(request) => self.delete_records(call, request).await,
            RequestKind::InitProducerId(request) => self.init_producer_id(call, request).await,
            RequestKind::OffsetForLeaderEpoch(request) => self.offset_for_leader_epoch(call, request).await,
            RequestKind::DescribeConfigs(request) => self.describe_configs(call, request),
            RequestKind::IncrementalAlterConfigs(request) => {
                self.incremental_alter_configs(call, request).await
            }
            RequestKind::CreatePartitions(request) => self.create_partitions(call, request).await,
            RequestKind::DescribeCluster(request) => self.describe_cluster(call, request),
            RequestKind::UpdateFeatures(request) => self.update_features(call, request).await,
            RequestKind::AlterConfigs(request) => self.alter_configs(call, request).await,
            RequestKind::DescribeLogDirs(request) => self.describe_log_dirs(call, request).await,
            RequestKind::ElectLeaders(request) => self.elect_leaders(call, request),
            RequestKind::AlterPartitionReassignments(request) => {
                self.alter_partition_reassignments(call, request)
            }
            RequestKind::ListPartitionReassignments(_) => self.list_partition_reassignments(call),
            RequestKind::OffsetDelete(request) => self.offset_delete(call, request).await,
            RequestKind::DescribeProducers(request) => self.describe_producers(call, request).await,
            RequestKind::ListConfigResources(request) => self.list_config_resources(call, request),
            RequestKind::DescribeTopicPartitions(request) => self.describe_topic_partitions(call, request),
            other => {
                // The table of versions and this match must name the same APIs.
                tracing::error!(api = call.header.api_key, request = ?std::mem::discriminant(&other), "no handler");
                Answer::Close
            }
        }
    }
}
