//! One of the two that are compared, and all it has answered.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use bytes::{Buf, Bytes};
use e2e::wire::{Wire, list_offsets, text, topic_name};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::fetch_response::FetchableTopicResponse;
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, FetchRequest, FindCoordinatorRequest, InitProducerIdRequest, ProduceRequest,
    ProducerId,
};
use kafka_protocol::protocol::{Request, StrBytes};
use uuid::Uuid;

use super::batch::crc32c;
use super::flatten::{self, Field};

/// How long something that comes by itself may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Times this near to now are the broker's own, ms.
const NEAR: i64 = 600_000;

/// What one request was answered: its place in the test, and its fields.
#[derive(Debug)]
pub struct Step {
    pub case: &'static str,
    pub step: String,
    pub fields: BTreeMap<String, Value>,
}

/// A value as it is compared, and as it came.
#[derive(Clone, Debug)]
pub struct Value {
    pub compared: String,
    pub raw: String,
}

/// A topic by both its names.
#[derive(Clone, Debug)]
pub struct Topic {
    pub name: StrBytes,
    pub id: Uuid,
}

/// A request that was sent and not answered yet.
pub struct Waiting {
    wire: Wire,
    version: i16,
}

pub struct Side {
    address: String,
    wire: Wire,
    correlation_id: i32,
    pub case: &'static str,
    pub steps: Vec<Step>,
    /// Where the first partition of each topic ends.
    ends: BTreeMap<String, i64>,
    /// What stands for values that are each broker's own, in order of their appearance in a case.
    known: BTreeMap<String, String>,
}

impl Side {
    pub fn new(address: &str) -> anyhow::Result<Side> {
        Ok(Side {
            address: address.to_owned(),
            wire: Wire::connect(address)?,
            correlation_id: 0,
            case: "",
            steps: Vec::new(),
            ends: BTreeMap::new(),
            known: BTreeMap::new(),
        })
    }

    pub fn begin(&mut self, case: &'static str) -> anyhow::Result<()> {
        self.case = case;
        self.known.clear();
        self.reconnect()
    }

    pub fn reconnect(&mut self) -> anyhow::Result<()> {
        self.wire = Wire::connect(&self.address)?;
        Ok(())
    }

    /// Sends a request and notes its answer; `None`: the connection was closed instead.
    pub fn ask<R: Request>(
        &mut self,
        what: impl Display,
        version: i16,
        request: &R,
    ) -> anyhow::Result<Option<R::Response>>
    where
        R::Response: Debug,
    {
        self.ask_tidy(what, version, request, |_| Vec::new())
    }

    /// The same; what `tidy` leaves of the answer is noted, and what it gives.
    pub fn ask_tidy<R: Request>(
        &mut self,
        what: impl Display,
        version: i16,
        request: &R,
        tidy: impl FnOnce(&mut R::Response) -> Vec<Field>,
    ) -> anyhow::Result<Option<R::Response>>
    where
        R::Response: Debug,
    {
        let api = ApiKey::try_from(R::KEY).map_or_else(|_| R::KEY.to_string(), |key| format!("{key:?}"));
        let what = format!("{what} ({api} v{version})");
        let Some(mut answer) = self.exchange(version, request).with_context(|| what.clone())? else {
            self.note(&what, vec![(String::new(), "connection closed".to_owned())]);
            return Ok(None);
        };
        let more = tidy(&mut answer);
        let mut fields = flatten::fields(&answer);
        fields.extend(more);
        self.note(&what, fields);
        Ok(Some(answer))
    }

    /// Fetch: the batches are noted field by field.
    pub fn fetch(&mut self, what: impl Display, version: i16, request: &FetchRequest) -> anyhow::Result<i32> {
        let answer = self.ask_tidy(what, version, request, |answer| {
            // The order is nobody's promise. Ids are each broker's own: by what is said of the topic.
            let first = |topic: &FetchableTopicResponse| topic.partitions.first().map(|one| one.error_code);
            answer
                .responses
                .sort_by_key(|topic| (topic.topic.clone(), first(topic)));
            let mut fields = Vec::new();
            for (i, topic) in answer.responses.iter_mut().enumerate() {
                topic
                    .partitions
                    .sort_by_key(|partition| partition.partition_index);
                for (j, partition) in topic.partitions.iter_mut().enumerate() {
                    let path = format!("responses[{i}].partitions[{j}].batches");
                    match partition.records.take() {
                        None => fields.push((path, "null".to_owned())),
                        Some(records) => fields.extend(batches(&path, records, 0)),
                    }
                }
            }
            fields
        })?;
        Ok(answer.map_or(0, |answer| answer.session_id))
    }

    /// Sends a request to produce to partition 0 of a topic and notes the answer and what it has stored, both seen from where
    /// the partition ended before: so one difference does not become many.
    pub fn produce(
        &mut self,
        what: &str,
        version: i16,
        topic: &Topic,
        request: &ProduceRequest,
    ) -> anyhow::Result<()> {
        let before = self.ends.get(topic.name.as_str()).copied().unwrap_or(0);
        self.ask_tidy(what, version, request, |answer| {
            answer.responses.sort_by_key(|topic| topic.name.clone());
            for topic in &mut answer.responses {
                topic.partition_responses.sort_by_key(|partition| partition.index);
                for partition in topic
                    .partition_responses
                    .iter_mut()
                    .filter(|partition| partition.base_offset >= 0)
                {
                    partition.base_offset -= before;
                }
            }
            Vec::new()
        })?;
        self.stored(what, topic)
    }

    /// Notes what has been stored since it was last looked at.
    pub fn stored(&mut self, what: &str, topic: &Topic) -> anyhow::Result<()> {
        let answer = self.quiet(7, &list_offsets(&topic.name, [0], -1))?;
        let end = answer.topics[0].partitions[0].offset;
        let before = self.ends.insert(topic.name.to_string(), end).unwrap_or(0);
        let mut fields = vec![("records".to_owned(), (end - before).to_string())];
        if end > before {
            let mut answer = self.quiet(12, &super::requests::fetch(12, topic, before))?;
            let records = answer.responses[0].partitions[0].records.take();
            fields.extend(batches("batches", records.unwrap_or_default(), before));
        }
        self.note(&format!("stored: {what}"), fields);
        Ok(())
    }

    /// Sends a request whose answer is of no interest.
    pub fn quiet<R: Request>(&mut self, version: i16, request: &R) -> anyhow::Result<R::Response> {
        let what = ApiKey::try_from(R::KEY);
        self.exchange(version, request)?
            .with_context(|| format!("{what:?} v{version}: connection closed"))
    }

    /// Sends a request that gets no answer.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> anyhow::Result<()> {
        let frame = self.frame(version, request)?;
        self.wire.send(&frame)
    }

    /// Sends a request over a connection of its own: it may have to wait for others.
    pub fn start<R: Request>(&mut self, version: i16, request: &R) -> anyhow::Result<Waiting> {
        let frame = self.frame(version, request)?;
        let mut wire = Wire::connect(&self.address)?;
        wire.send(&frame)?;
        Ok(Waiting { wire, version })
    }

    /// Waits for the answer to a request that was started, and notes it.
    pub fn finish<R: Request>(
        &mut self,
        what: &str,
        mut waiting: Waiting,
        tidy: impl FnOnce(&mut R::Response),
    ) -> anyhow::Result<R::Response>
    where
        R::Response: Debug,
    {
        let answer = waiting.wire.receive().with_context(|| what.to_owned())?;
        let (_, mut answer) = kafka_wire::client::decode::<R>(answer, waiting.version)?;
        tidy(&mut answer);
        self.note(what, flatten::fields(&answer));
        Ok(answer)
    }

    /// Sends a frame, length included, and notes the bytes of the answer.
    pub fn raw(&mut self, what: &str, frame: &[u8]) -> anyhow::Result<()> {
        let answer = match self.receive(frame)? {
            None => "connection closed".to_owned(),
            Some(answer) => format!("{answer:?}"),
        };
        self.note(what, vec![(String::new(), answer)]);
        Ok(())
    }

    fn frame<R: Request>(&mut self, version: i16, request: &R) -> anyhow::Result<Bytes> {
        self.correlation_id += 1;
        Ok(kafka_wire::client::encode(
            request,
            version,
            self.correlation_id,
            "oracle",
        )?)
    }

    fn exchange<R: Request>(&mut self, version: i16, request: &R) -> anyhow::Result<Option<R::Response>> {
        let frame = self.frame(version, request)?;
        let Some(answer) = self.receive(&frame)? else {
            return Ok(None);
        };
        let (id, response) = kafka_wire::client::decode::<R>(answer, version)?;
        if id != self.correlation_id {
            bail!("answer to {id} instead of {}", self.correlation_id);
        }
        Ok(Some(response))
    }

    fn receive(&mut self, frame: &[u8]) -> anyhow::Result<Option<Bytes>> {
        // One that was closed before fails here already.
        let answer = self.wire.send(frame).and_then(|()| self.wire.receive());
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if is_closed(&error) => {
                self.reconnect()?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes fields of a step. A step that comes again gets a number.
    pub fn note(&mut self, what: &str, fields: Vec<Field>) {
        let again = self.steps.iter().filter(|step| step.case == self.case);
        let again = again
            .filter(|step| step.step.split(" #").next() == Some(what))
            .count();
        let step = match again {
            0 => what.to_owned(),
            _ => format!("{what} #{}", again + 1),
        };
        let fields = fields.into_iter().map(|(path, raw)| {
            let compared = self.comparable(&path, &raw);
            (path, Value { compared, raw })
        });
        let fields = fields.collect();
        let case = self.case;
        self.steps.push(Step { case, step, fields });
    }

    /// What is compared of a value: not what each broker chooses for itself.
    fn comparable(&mut self, path: &str, raw: &str) -> String {
        let name = path.rsplit(['.', ']']).next().unwrap_or(path);
        let number = raw.parse::<i64>().ok();
        match (name, number) {
            ("cluster_id", _) if raw != "None" => "<cluster>".to_owned(),
            ("port", Some(1..)) => "<port>".to_owned(),
            ("producer_id", Some(0..)) => self.stand_in("producer", raw),
            ("session_id", Some(1..)) => self.stand_in("session", raw),
            (_, Some(number)) if (number - now()).abs() < NEAR => "<now>".to_owned(),
            // People read them; programs do not.
            _ if name.ends_with("message") && raw.len() > 2 && raw != "None" => "<text>".to_owned(),
            _ => self.without_ids(raw),
        }
    }

    fn stand_in(&mut self, kind: &str, raw: &str) -> String {
        let next = self.known.keys().filter(|known| known.starts_with(kind)).count() + 1;
        let key = format!("{kind} {raw}");
        self.known
            .entry(key)
            .or_insert_with(|| format!("<{kind} {next}>"))
            .clone()
    }

    /// Ids of topics and members hold a UUID.
    fn without_ids(&mut self, raw: &str) -> String {
        const LEN: usize = 36;
        let is_id =
            |part: &str| part.as_bytes()[8] == b'-' && Uuid::try_parse(part).is_ok_and(|id| !id.is_nil());
        for start in 0..raw.len().saturating_sub(LEN - 1) {
            if let Some(part) = raw.get(start..start + LEN).filter(|part| is_id(part)) {
                let id = self.stand_in("id", part);
                let rest = self.without_ids(&raw[start + LEN..]);
                return format!("{}{id}{rest}", &raw[..start]);
            }
        }
        raw.to_owned()
    }

    /// Waits until what needs other parts of the cluster is served: groups, and the ids of producers.
    pub fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        self.until("a group coordinator", |side| {
            let request = FindCoordinatorRequest::default().with_key(text("warm"));
            Ok((side.quiet(3, &request)?.error_code == 0).then_some(()))
        })?;
        self.until("groups", |side| {
            let request = super::requests::offset_fetch("warm", None);
            Ok((side.quiet(5, &request)?.error_code == 0).then_some(()))
        })?;
        self.producer_id().map(|_| ())
    }

    pub fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Side) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if start.elapsed() > PATIENCE {
                bail!("not within {PATIENCE:?}: {what}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// An id that no other producer has.
    pub fn producer_id(&mut self) -> anyhow::Result<i64> {
        self.until("a producer id", |side| {
            let request = InitProducerIdRequest::default()
                .with_transactional_id(None)
                .with_transaction_timeout_ms(60_000)
                .with_producer_id(ProducerId(-1))
                .with_producer_epoch(-1);
            let answer = side.quiet(4, &request)?;
            Ok((answer.error_code == 0).then_some(answer.producer_id.0))
        })
    }

    /// Creates a topic and waits until its partitions are served.
    pub fn topic(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> anyhow::Result<Topic> {
        let config = |(name, value): &(&str, &str)| {
            CreatableTopicConfig::default()
                .with_name(text(name))
                .with_value(Some(text(value)))
        };
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(configs.iter().map(config).collect());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        let answer = self.quiet(7, &request)?;
        let created = answer.topics.first().context("no result")?;
        if created.error_code != 0 {
            bail!(
                "topic {name}: error {} ({:?})",
                created.error_code,
                created.error_message
            );
        }
        let id = created.topic_id;
        self.until("the topic's partitions", |side| {
            let request = list_offsets(name, 0..partitions, -1);
            let answer = side.quiet(7, &request)?;
            let served = answer.topics.iter().flat_map(|topic| &topic.partitions);
            Ok(served
                .into_iter()
                .all(|partition| partition.error_code == 0)
                .then_some(()))
        })?;
        Ok(Topic { name: text(name), id })
    }
}

fn is_closed(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(
        kind,
        Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
    )
}

/// When the test began, ms: both are sent the same.
pub fn now() -> i64 {
    static BEGIN: OnceLock<i64> = OnceLock::new();
    *BEGIN.get_or_init(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        i64::try_from(since.as_millis()).expect("before long")
    })
}

/// The batches of a fetch, header field by header field, their offsets counted from `start`.
fn batches(path: &str, mut records: Bytes, start: i64) -> Vec<Field> {
    const HEADER: usize = 61;
    let mut fields = Vec::new();
    let mut index = 0;
    while records.len() >= HEADER {
        let size =
            usize::try_from(i32::from_be_bytes(records[8..12].try_into().expect("4"))).unwrap_or(0) + 12;
        if size < HEADER || size > records.len() {
            break;
        }
        let batch = records.split_to(size);
        let crc_is = crc32c(&batch[21..]) == u32::from_be_bytes(batch[17..21].try_into().expect("4"));
        let mut head = batch.slice(..HEADER);
        let mut put = |name: &str, value: String| fields.push((format!("{path}[{index}].{name}"), value));
        put("base_offset", (head.get_i64() - start).to_string());
        put("length", head.get_i32().to_string());
        put("partition_leader_epoch", head.get_i32().to_string());
        put("magic", head.get_i8().to_string());
        head.advance(4);
        // It covers a producer's id and the broker's time, which are each broker's own.
        put("crc", if crc_is { "right" } else { "wrong" }.to_owned());
        put("attributes", head.get_i16().to_string());
        put("last_offset_delta", head.get_i32().to_string());
        put("base_timestamp", head.get_i64().to_string());
        put("max_timestamp", head.get_i64().to_string());
        put("producer_id", head.get_i64().to_string());
        put("producer_epoch", head.get_i16().to_string());
        put("base_sequence", head.get_i32().to_string());
        put("count", head.get_i32().to_string());
        put("records", format!("{:?}", batch.slice(HEADER..)));
        index += 1;
    }
    if index == 0 || !records.is_empty() {
        fields.push((
            path.to_owned(),
            format!("{} bytes behind {index} batches", records.len()),
        ));
    }
    fields
}
