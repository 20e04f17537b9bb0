//! Kafka admin client: how the operator reads and changes topics, and the level of the cluster's formats.
//!
//! One connection per reconcile, one request at a time. Any broker serves any request, so there is no hunt for a
//! controller, and the versions are old enough for every broker this operator can meet.

mod features;
pub mod messages;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use env::{Env, Stream};
use kafka_protocol::error::{ParseResponseErrorCode, ResponseError};
use kafka_wire::flex::{Decode, get_tagged, put_uvarint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uuid::Uuid;

use crate::metrics::Metrics;
pub use features::{Levels, Update};
use messages::*;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What a broker may take to carry out a change.
const OPERATION_TIMEOUT_MS: i32 = 10_000;
/// Longer than [`OPERATION_TIMEOUT_MS`], so that the broker's own answer comes first.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Bound of a response; the largest is the metadata of one topic.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;
const CLIENT_ID: &str = "diskless-operator";
const TOPIC_RESOURCE: i8 = 2;
/// `config_source` of a key set on the topic itself.
const SET_ON_TOPIC: i8 = 1;

/// Why something could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// No broker answers at the address.
    #[error("cannot reach a broker at {address}: {reason}")]
    Unreachable {
        /// `host:port`.
        address: String,
        /// In words.
        reason: String,
    },
    /// The broker broke off, or what it says is not Kafka.
    #[error("{api} failed: {reason}")]
    Broken {
        /// The request.
        api: &'static str,
        /// In words.
        reason: String,
    },
    /// The broker refused.
    #[error("{api} refused: {message}")]
    Refused {
        /// The request.
        api: &'static str,
        /// Kafka's error.
        error: ResponseError,
        /// In words, the broker's own if it gave any.
        message: String,
    },
}

impl AdminError {
    /// True when only another spec can help.
    pub fn is_terminal(&self) -> bool {
        use ResponseError::*;
        let Self::Refused { error, .. } = self else {
            return false;
        };
        matches!(
            error,
            InvalidTopicException | InvalidPartitions | InvalidConfig | PolicyViolation | InvalidRequest
        )
    }
}

/// A topic as the cluster has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Topic id.
    pub id: Uuid,
    /// Number of partitions.
    pub partitions: i32,
    /// Configs that are set on the topic; defaults are not listed.
    pub configs: BTreeMap<String, String>,
}

/// A connection to one broker.
#[derive(Debug)]
pub struct Admin {
    stream: Stream,
    env: Env,
    metrics: Arc<Metrics>,
    correlation_id: i32,
}

impl Admin {
    /// Connects to `address` (`host:port`).
    ///
    /// # Errors
    /// [`AdminError::Unreachable`].
    pub async fn connect(env: &Env, metrics: Arc<Metrics>, address: &str) -> Result<Self, AdminError> {
        let unreachable = |reason: String| AdminError::Unreachable {
            address: address.to_owned(),
            reason,
        };
        let stream = match env.timeout(CONNECT_TIMEOUT, env.connect(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
            Err(elapsed) => return Err(unreachable(elapsed.to_string())),
        };
        Ok(Self {
            stream,
            env: env.clone(),
            metrics,
            correlation_id: 0,
        })
    }

    /// Id of the cluster, if the brokers give one.
    ///
    /// # Errors
    /// The broker cannot be talked to.
    pub async fn cluster_id(&mut self) -> Result<Option<String>, AdminError> {
        let response = self
            .request(&MetadataRequest {
                topics: NullableArray(Some(Vec::new())),
                allow_auto_topic_creation: false,
                include_topic_authorized_operations: false,
            })
            .await?;
        Ok(response.cluster_id.0)
    }

    /// The topic of that name, if there is one.
    ///
    /// # Errors
    /// The broker cannot be talked to, or refuses.
    pub async fn describe(&mut self, name: &str) -> Result<Option<Topic>, AdminError> {
        const API: &str = MetadataRequest::NAME;
        let topic = MetadataRequestTopic {
            topic_id: Uuid::nil(),
            name: NullableString(Some(name.to_owned())),
        };
        let response = self
            .request(&MetadataRequest {
                topics: NullableArray(Some(vec![topic])),
                allow_auto_topic_creation: false,
                include_topic_authorized_operations: false,
            })
            .await?;
        let Some(topic) = response
            .topics
            .into_iter()
            .find(|topic| topic.name.0.as_deref() == Some(name))
        else {
            return Err(incomplete(API, name));
        };
        match topic.error_code.err() {
            None => {}
            Some(ResponseError::UnknownTopicOrPartition) => return Ok(None),
            Some(error) => return Err(refused(API, error, None)),
        }
        let partitions = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        Ok(self.configs(name).await?.map(|configs| Topic {
            id: topic.topic_id,
            partitions,
            configs,
        }))
    }

    async fn configs(&mut self, name: &str) -> Result<Option<BTreeMap<String, String>>, AdminError> {
        const API: &str = DescribeConfigsRequest::NAME;
        let response = self
            .request(&DescribeConfigsRequest {
                resources: vec![DescribedResource {
                    resource_type: TOPIC_RESOURCE,
                    resource_name: name.to_owned(),
                    configuration_keys: NullableArray(None),
                }],
                include_synonyms: false,
                include_documentation: false,
            })
            .await?;
        let Some(result) = response.results.into_iter().next() else {
            return Err(incomplete(API, name));
        };
        match result.error_code.err() {
            None => {}
            // Deleted between the two requests.
            Some(ResponseError::UnknownTopicOrPartition) => return Ok(None),
            Some(error) => return Err(refused(API, error, result.error_message.0)),
        }
        let set = result
            .configs
            .into_iter()
            .filter(|entry| entry.config_source == SET_ON_TOPIC);
        Ok(Some(
            set.filter_map(|entry| Some((entry.name, entry.value.0?)))
                .collect(),
        ))
    }

    /// Creates a topic and returns its id.
    ///
    /// # Errors
    /// The broker cannot be talked to, or refuses.
    pub async fn create(
        &mut self,
        name: &str,
        partitions: i32,
        configs: &BTreeMap<String, String>,
    ) -> Result<Uuid, AdminError> {
        const API: &str = CreateTopicsRequest::NAME;
        let config = |(name, value): (&String, &String)| NewTopicConfig {
            name: name.clone(),
            value: NullableString(Some(value.clone())),
        };
        let response = self
            .request(&CreateTopicsRequest {
                topics: vec![NewTopic {
                    name: name.to_owned(),
                    num_partitions: partitions,
                    replication_factor: -1,
                    assignments: Vec::new(),
                    configs: configs.iter().map(config).collect(),
                }],
                timeout_ms: OPERATION_TIMEOUT_MS,
                validate_only: false,
            })
            .await?;
        let Some(topic) = response.topics.into_iter().next() else {
            return Err(incomplete(API, name));
        };
        check(API, topic.error_code, topic.error_message)?;
        Ok(topic.topic_id)
    }

    /// Raises the number of partitions to `total`.
    ///
    /// # Errors
    /// The broker cannot be talked to, or refuses.
    pub async fn grow(&mut self, name: &str, total: i32) -> Result<(), AdminError> {
        const API: &str = CreatePartitionsRequest::NAME;
        let topic = GrownTopic {
            name: name.to_owned(),
            count: total,
            assignments: NullableArray(None),
        };
        let response = self
            .request(&CreatePartitionsRequest {
                topics: vec![topic],
                timeout_ms: OPERATION_TIMEOUT_MS,
                validate_only: false,
            })
            .await?;
        let Some(result) = response.results.into_iter().next() else {
            return Err(incomplete(API, name));
        };
        check(API, result.error_code, result.error_message)
    }

    /// Sets (`Some`) or resets (`None`) configs of a topic.
    ///
    /// # Errors
    /// The broker cannot be talked to, or refuses.
    pub async fn alter_configs(
        &mut self,
        name: &str,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<(), AdminError> {
        const API: &str = IncrementalAlterConfigsRequest::NAME;
        let change = |(name, value): (&String, &Option<String>)| AlteredConfig {
            name: name.clone(),
            config_operation: i8::from(value.is_none()),
            value: NullableString(value.clone()),
        };
        let response = self
            .request(&IncrementalAlterConfigsRequest {
                resources: vec![AlteredResource {
                    resource_type: TOPIC_RESOURCE,
                    resource_name: name.to_owned(),
                    configs: changes.iter().map(change).collect(),
                }],
                validate_only: false,
            })
            .await?;
        let Some(result) = response.responses.into_iter().next() else {
            return Err(incomplete(API, name));
        };
        check(API, result.error_code, result.error_message)
    }

    /// Deletes the topic with this id; that it is gone already is fine.
    ///
    /// # Errors
    /// The broker cannot be talked to, or refuses.
    pub async fn delete(&mut self, id: Uuid) -> Result<(), AdminError> {
        const API: &str = DeleteTopicsRequest::NAME;
        let response = self
            .request(&DeleteTopicsRequest {
                topics: vec![TopicToDelete {
                    name: NullableString(None),
                    topic_id: id,
                }],
                timeout_ms: OPERATION_TIMEOUT_MS,
            })
            .await?;
        let Some(result) = response.responses.into_iter().next() else {
            return Err(incomplete(API, &id.to_string()));
        };
        match result.error_code.err() {
            Some(ResponseError::UnknownTopicId | ResponseError::UnknownTopicOrPartition) => Ok(()),
            _ => check(API, result.error_code, result.error_message),
        }
    }

    async fn request<R: Request>(&mut self, request: &R) -> Result<R::Response, AdminError> {
        let env = self.env.clone();
        let result = match env.timeout(REQUEST_TIMEOUT, self.exchange(request)).await {
            Ok(result) => result,
            Err(elapsed) => Err(elapsed.to_string()),
        };
        self.metrics.admin_request(R::NAME, result.is_ok());
        result.map_err(|reason| AdminError::Broken { api: R::NAME, reason })
    }

    async fn exchange<R: Request>(&mut self, request: &R) -> Result<R::Response, String> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let frame = encode(request, self.correlation_id);
        self.stream.write_all(&frame).await.map_err(|e| e.to_string())?;
        let len = self.stream.read_i32().await.map_err(|e| e.to_string())?;
        let len = usize::try_from(len).ok().filter(|len| *len <= MAX_RESPONSE);
        let Some(len) = len else {
            return Err("the answer is not a Kafka response".to_owned());
        };
        // Grows with what arrives, not with what was announced.
        let mut body = BytesMut::new();
        let mut rest = (&mut self.stream).take(len as u64);
        while body.len() < len {
            if rest.read_buf(&mut body).await.map_err(|e| e.to_string())? == 0 {
                return Err("the connection ended within the answer".to_owned());
            }
        }
        decode::<R>(body.freeze(), self.correlation_id)
    }
}

/// Length, request header v2, body.
fn encode<R: Request>(request: &R, correlation_id: i32) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i32(0);
    out.put_i16(R::API_KEY);
    out.put_i16(R::VERSION);
    out.put_i32(correlation_id);
    // The client id is the one field that never became compact.
    out.put_i16(CLIENT_ID.len() as i16);
    out.put_slice(CLIENT_ID.as_bytes());
    put_uvarint(&mut out, 0);
    request.encode(&mut out);
    let len = out.len().saturating_sub(4) as u32;
    if let Some(prefix) = out.first_chunk_mut::<4>() {
        *prefix = len.to_be_bytes();
    }
    out.freeze()
}

/// Response header v1 (without tags: v0), body.
fn decode<R: Request>(mut frame: Bytes, correlation_id: i32) -> Result<R::Response, String> {
    let correlation = frame.try_get_i32().map_err(|e| e.to_string())?;
    if correlation != correlation_id {
        return Err(format!(
            "answer to request {correlation} where {correlation_id} was due"
        ));
    }
    if R::TAGGED_RESPONSE_HEADER {
        get_tagged(&mut frame, |_, _| Ok(())).map_err(|e| e.to_string())?;
    }
    R::Response::from_bytes(frame).map_err(|e| e.to_string())
}

fn check(api: &'static str, code: i16, message: NullableString) -> Result<(), AdminError> {
    match code.err() {
        None => Ok(()),
        Some(error) => Err(refused(api, error, message.0)),
    }
}

fn refused(api: &'static str, error: ResponseError, message: Option<String>) -> AdminError {
    let message = match message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{message} ({error:?})"),
        None => format!("{error:?}"),
    };
    AdminError::Refused { api, error, message }
}

fn incomplete(api: &'static str, what: &str) -> AdminError {
    AdminError::Broken {
        api,
        reason: format!("the answer does not speak of {what}"),
    }
}

#[cfg(test)]
mod tests;
