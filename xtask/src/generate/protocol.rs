//! The reference of the internal RPCs, from the source of their structs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, bail};

use crate::run::root;

const SOURCES: [&str; 3] = [
    "broker/crates/coordinator/src/protocol.rs",
    "broker/crates/cluster/src/protocol.rs",
    "broker/crates/cluster/src/image.rs",
];

/// What stands before the list of requests.
const HEAD: &str = "# Internal RPCs

Generated from the sources by `cargo xtask generate`.

Brokers, coordinators and the controller talk on the internal listener (`internal.port`). The seven requests of the
Diskless Coordinator have the names that KIP-1164 gives them; their fields, and the other requests, are this project's.

**Framing** is Kafka's: a length (INT32), then request header version 2 (api key, api version, correlation id, a client
id that is null, tagged fields) and the body. Answers carry response header version 1 and come in any order; the
correlation id pairs them. The api keys are above those of Apache Kafka and served nowhere else: a client listener closes
a connection that uses one.

**Versions.** Every request has version 0. Each struct, and each header, ends with tagged fields, so that fields can be added without a new
version: who does not know a tag skips it. Another version, and a key that the node does not serve, is answered with
UNSUPPORTED_VERSION (35), a body that cannot be read with INVALID_REQUEST (42). Such an answer is an ErrorResponse, whatever the
request: who cannot read an answer as its own looks whether it is one. The connection goes on; only a header that cannot be read ends it.
The first release closes the connection in all these cases, and does not read tagged fields in headers: until none of its nodes can be a
peer, nobody sends what it does not know, but for one DisklessCancel at the beginning of a connection on which nothing else goes on.

**Connections.** A node has one connection to each other for what is answered as soon as it is done, and a second one for what waits for others:
forwarded JoinGroup and SyncGroup requests, of which a node holds up to 32768 for each connection and refuses more with
COORDINATOR_NOT_AVAILABLE (15). Of all others 4096 are worked on at a time; past that, the connection is not read.
A connection ends when the peer's machine confirms nothing for ten seconds, or, at the first, when calls have got no answer for two seconds and nothing
else has arrived; what becomes of calls on their way is then unknown, and they are made again.

**Authentication.** A connection begins with Kafka's SaslHandshake (key 17, version 1) and SaslAuthenticate (key 36, version
1), mechanism SCRAM-SHA-256 with the secret of the cluster (`internal.secret_file`), in which both sides prove that they
know it. Who does is `User:diskless-node` and holds CLUSTER_ACTION. Any other request before that is answered with
CLUSTER_AUTHORIZATION_FAILED (31), a wrong proof with SASL_AUTHENTICATION_FAILED (58), and the connection is closed.

**Leaders.** A request for a shard that the asked node does not lead gets NOT_COORDINATOR (16), one for the controller
NOT_CONTROLLER (41); while a log is being opened COORDINATOR_LOAD_IN_PROGRESS (14); when log or view have failed
COORDINATOR_NOT_AVAILABLE (15). DisklessFindBatches is answered by followers, too. After all but the third the outcome may be unknown: who
loses the lead while it writes does not know whether the log has it. All are to be repeated; every request may be.

**Types.** As in Kafka: integers are big-endian, strings, bytes and arrays compact (length plus one as UNSIGNED_VARINT). `?`
marks what may be null: an INT8 of -1 stands for null, of 1 before a value. UINT32 and UINT64 are unsigned.
";

#[derive(Debug)]
struct Struct {
    doc: String,
    fields: Vec<Field>,
}

#[derive(Debug)]
struct Field {
    name: String,
    kind: String,
    tag: Option<u32>,
    doc: String,
}

#[derive(Debug)]
struct Rpc {
    key: i16,
    name: String,
    doc: String,
}

/// `docs/protocol/README.md`.
pub fn reference() -> anyhow::Result<String> {
    let mut source = String::new();
    for path in SOURCES {
        source += &fs::read_to_string(root().join(path)).with_context(|| path.to_owned())?;
    }
    render(&rpcs(&source), &structs(&source)?)
}

fn render(rpcs: &[Rpc], structs: &BTreeMap<String, Struct>) -> anyhow::Result<String> {
    let mut out = HEAD.to_owned();
    out += "\n| key | request |\n| --- | --- |\n";
    for rpc in rpcs {
        let anchor = rpc.name.to_lowercase();
        writeln!(out, "| {} | [{}](#{anchor}) |", rpc.key, rpc.name)?;
    }
    // Structs that several requests use are described once, at the end.
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for rpc in rpcs {
        for top in ends(rpc, structs)? {
            for name in reachable(&top, structs) {
                uses.entry(name).or_default().insert(&rpc.name);
            }
        }
    }
    let shared: BTreeSet<&str> = uses
        .iter()
        .filter(|(_, by)| by.len() > 1)
        .map(|(name, _)| *name)
        .collect();
    for rpc in rpcs {
        writeln!(
            out,
            "\n## {}\n\nKey {}, version 0.{}",
            rpc.name,
            rpc.key,
            lead(&rpc.doc)
        )?;
        for top in ends(rpc, structs)? {
            for name in reachable(&top, structs) {
                if name == top || !shared.contains(name) {
                    describe(&mut out, name, structs)?;
                }
            }
        }
    }
    out += "\n## Shared structs\n";
    for name in shared.iter().filter(|name| !name.ends_with("Response")) {
        describe(&mut out, name, structs)?;
    }
    Ok(out)
}

/// Names of the request and the response.
fn ends(rpc: &Rpc, structs: &BTreeMap<String, Struct>) -> anyhow::Result<[String; 2]> {
    let short = rpc.name.trim_start_matches("Diskless");
    let request = format!("{short}Request");
    if !structs.contains_key(&request) {
        bail!("{} has no struct {request}", rpc.name);
    }
    let response = format!("{short}Response");
    let known = structs.contains_key(&response);
    Ok([
        request,
        if known {
            response
        } else {
            "ErrorResponse".to_owned()
        },
    ])
}

fn reachable<'a>(top: &str, structs: &'a BTreeMap<String, Struct>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    let mut next = vec![top.to_owned()];
    while let Some(name) = next.pop() {
        let Some((name, known)) = structs.get_key_value(&name) else {
            continue;
        };
        if found.contains(&name.as_str()) {
            continue;
        }
        found.push(name);
        next.extend(
            known
                .fields
                .iter()
                .rev()
                .map(|field| inner(&field.kind).to_owned()),
        );
    }
    found
}

/// The type without `Vec`, `Option` and `Arc` around it.
fn inner(kind: &str) -> &str {
    let stripped = ["Vec<", "Option<", "Arc<"]
        .iter()
        .find_map(|open| kind.strip_prefix(open)?.strip_suffix('>'));
    stripped.map_or(kind, inner)
}

fn describe(out: &mut String, name: &str, structs: &BTreeMap<String, Struct>) -> anyhow::Result<()> {
    let Some(known) = structs.get(name) else {
        bail!("unknown struct {name}");
    };
    writeln!(out, "\n### {name}\n")?;
    if !known.doc.is_empty() {
        writeln!(out, "{}\n", known.doc)?;
    }
    if known.fields.is_empty() {
        writeln!(out, "No fields.")?;
        return Ok(());
    }
    writeln!(out, "| field | type | meaning |\n| --- | --- | --- |")?;
    for field in &known.fields {
        if field.doc.is_empty() {
            bail!("{name}.{} has no documentation", field.name);
        }
        let tag = field.tag.map(|tag| format!(", tag {tag}")).unwrap_or_default();
        let kind = wire_type(&field.kind, structs)?;
        writeln!(
            out,
            "| {} | {kind}{tag} | {} |",
            field.name,
            field.doc.replace('|', "\\|")
        )?;
    }
    Ok(())
}

fn wire_type(kind: &str, structs: &BTreeMap<String, Struct>) -> anyhow::Result<String> {
    if let Some(kind) = kind.strip_prefix("Vec<").and_then(|kind| kind.strip_suffix('>')) {
        return Ok(format!("ARRAY of {}", wire_type(kind, structs)?));
    }
    if let Some(kind) = kind
        .strip_prefix("Option<")
        .and_then(|kind| kind.strip_suffix('>'))
    {
        return Ok(format!("{}?", wire_type(kind, structs)?));
    }
    if let Some(shared) = kind.strip_prefix("Arc<").and_then(|kind| kind.strip_suffix('>'))
        && shared != "str"
    {
        return wire_type(shared, structs);
    }
    let plain = match kind {
        "bool" => "BOOLEAN",
        "i8" => "INT8",
        "i16" => "INT16",
        "i32" | "NodeId" => "INT32",
        "i64" | "Timestamp" => "INT64",
        "u8" => "UINT8",
        "u16" => "UINT16",
        "u32" | "ShardId" => "UINT32",
        "u64" | "LogOffset" | "Epoch" => "UINT64",
        "String" | "Arc<str>" => "STRING",
        "Bytes" | "bytes::Bytes" => "BYTES",
        "Uuid" | "TopicId" => "UUID",
        "FeatureLevel" => "INT16",
        "FeatureLevels" => "INT16, INT16",
        "TopicPartition" => "UUID, INT32",
        other if structs.contains_key(other) => return Ok(format!("[{other}](#{})", other.to_lowercase())),
        other => bail!("no wire type is known for {other}"),
    };
    Ok(plain.to_owned())
}

/// The sentence after the name in the documentation of an api key.
fn lead(doc: &str) -> String {
    match doc.split_once(": ") {
        Some((_, text)) => format!(
            " {}{}",
            text.get(..1).unwrap_or_default().to_uppercase(),
            text.get(1..).unwrap_or_default()
        ),
        None => String::new(),
    }
}

fn rpcs(source: &str) -> Vec<Rpc> {
    let mut found = Vec::new();
    let mut doc = Vec::new();
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            doc.push(text.to_owned());
            continue;
        }
        let key = line
            .strip_prefix("pub const ")
            .and_then(|rest| rest.split_once(": i16 = "))
            .and_then(|(_, value)| value.trim_end_matches(';').parse().ok());
        let doc = std::mem::take(&mut doc).join(" ");
        let name = doc.split('`').nth(1).filter(|name| name.starts_with("Diskless"));
        if let (Some(key), Some(name)) = (key, name) {
            let name = name.to_owned();
            found.push(Rpc { key, name, doc });
        }
    }
    found.sort_by_key(|rpc| rpc.key);
    found
}

fn structs(source: &str) -> anyhow::Result<BTreeMap<String, Struct>> {
    let mut found = BTreeMap::new();
    for block in source.split("flex_struct! {").skip(1) {
        let (block, _) = block.split_once("\n}").context("an open flex_struct")?;
        let mut doc = Vec::new();
        let mut current: Option<(String, Struct)> = None;
        for line in block.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("///") {
                doc.push(text.trim().to_owned());
                continue;
            }
            let (tag, declared) = match line.split_once(" => ") {
                Some((tag, rest)) => (tag.parse().ok(), rest),
                None => (None, line),
            };
            let Some(declared) = declared.strip_prefix("pub ") else {
                continue;
            };
            let doc = plain(&std::mem::take(&mut doc).join(" "));
            if let Some(name) = declared.strip_prefix("struct ") {
                let name = name.trim_end_matches([' ', '{', '}']).to_owned();
                let fields = Vec::new();
                current = Some((name, Struct { doc, fields }));
            } else if let (Some((_, of)), Some((name, kind))) = (&mut current, declared.split_once(": ")) {
                let kind = kind.trim_end_matches(',').to_owned();
                let name = name.to_owned();
                of.fields.push(Field { name, kind, tag, doc });
            }
        }
        found.extend(current);
    }
    Ok(found)
}

/// Without what only rustdoc understands.
fn plain(doc: &str) -> String {
    doc.replace("[`crate::image::", "[`")
        .replace("[`", "`")
        .replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_and_every_field_is_described() {
        let text = reference().unwrap();
        // The seven of KIP-1164.
        for name in [
            "CreatePartitions",
            "DeleteTopics",
            "CommitFile",
            "DeleteRecords",
            "ListOffsets",
            "FindBatches",
            "DescribeFiles",
        ] {
            assert!(text.contains(&format!("## Diskless{name}\n")), "{name}");
        }
        assert!(text.contains("| error_code | INT16 |"));
    }

    #[test]
    fn what_is_not_documented_is_refused() {
        let source = "/// `DisklessPing`\npub const PING: i16 = 1;\nflex_struct! {\n    pub struct PingRequest {\n        pub a: i16,\n    }\n}\n\
                      flex_struct! {\n    pub struct ErrorResponse {\n        /// Code.\n        pub error_code: i16,\n        tagged {\n            /// Text.\n            3 => pub text: Option<String>,\n        }\n    }\n}\n";
        let error = render(&rpcs(source), &structs(source).unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains("PingRequest.a"), "{error}");
        let source = source.replace("pub a", "/// It.\n        pub a");
        let text = render(&rpcs(&source), &structs(&source).unwrap()).unwrap();
        assert!(
            text.contains("| a | INT16 | It. |") && text.contains("| text | STRING?, tag 3 | Text. |"),
            "{text}"
        );
    }
}
