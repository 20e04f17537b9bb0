//! What the documentation tells users to apply can be applied.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use e2e::apiserver::ApiServer;
use e2e::root;
use serde_json::Value;

/// Files below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path))
        } else {
            found.push(path)
        }
    }
    found.sort();
    found
}

/// The blocks of a Markdown file that are Kubernetes objects.
fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in markdown.lines() {
        block = match block.take() {
            None => matches!(line.trim(), "```yaml" | "```yml").then(String::new),
            Some(text) if line.trim() == "```" => {
                blocks.push(text);
                None
            }
            Some(text) => Some(text + line + "\n"),
        };
    }
    blocks.retain(|block| block.contains("apiVersion:"));
    blocks
}

/// Everything that users are told to apply, with the place where.
fn documents() -> Vec<(String, String)> {
    let mut paths = files(&root().join("docs"));
    paths.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    let mut documents = Vec::new();
    for path in paths {
        let name = path.display().to_string();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml" | "yml") => documents.push((name, std::fs::read_to_string(&path).unwrap())),
            Some("md") => {
                let text = std::fs::read_to_string(&path).unwrap();
                documents.extend(blocks(&text).into_iter().map(|block| (name.clone(), block)));
            }
            _ => {}
        }
    }
    documents
}

#[tokio::test]
async fn every_document_applies() {
    let server = ApiServer::with_crds().await.expect("an API server");
    let mut documents = documents();
    assert!(!documents.is_empty());
    // What the demo and the cluster tests apply beside them.
    for path in files(&root().join("e2e/kind/manifests")) {
        documents.push((
            path.display().to_string(),
            std::fs::read_to_string(&path).unwrap(),
        ));
    }
    let mut wrong = Vec::new();
    for (name, yaml) in documents {
        // Nodes have what is installed there already; a field that the server would drop is an error.
        let mut kubectl = server.kubectl();
        kubectl.args([
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            "-",
        ]);
        let mut child = kubectl
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(yaml.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        if !output.status.success() {
            wrong.push(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn objects(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&std::fs::read_to_string(root().join(file)).unwrap()).unwrap()
}

fn of_kind(objects: &[Value], kind: &str) -> Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .cloned()
        .unwrap_or_else(|| panic!("no {kind}"))
}

/// The quickstart is what the demo applies: its store must be the one that is there, its pool the one that nodes are in.
#[test]
fn the_quickstart_fits_the_demo() {
    let quickstart = objects("docs/examples/quickstart.yaml");
    let store = objects("e2e/kind/manifests/s3.yaml");
    let cluster = of_kind(&quickstart, "DisklessCluster");
    let s3 = &cluster["spec"]["objectStore"]["s3"];
    let service = of_kind(&store, "Service");
    let endpoint = s3["endpoint"].as_str().unwrap();
    let (name, port) = (
        service["metadata"]["name"].as_str().unwrap(),
        &service["spec"]["ports"][0]["port"],
    );
    assert!(endpoint.starts_with(&format!("http://{name}.")), "{endpoint}");
    assert!(endpoint.ends_with(&format!(":{port}")), "{endpoint}");

    let secret = of_kind(&store, "Secret");
    assert_eq!(
        cluster["spec"]["objectStore"]["credentials"]["secretRef"]["name"],
        secret["metadata"]["name"]
    );
    for key in ["access_key_id", "secret_access_key"] {
        assert!(secret["stringData"][key].is_string(), "{key}");
    }
    let deployment = of_kind(&store, "Deployment")["spec"]["template"]["spec"].to_string();
    assert!(
        deployment.contains(&format!("/data/{}\"", s3["bucket"].as_str().unwrap())),
        "another bucket"
    );
    assert!(
        deployment.contains(s3["region"].as_str().unwrap()),
        "another region"
    );

    let topic = of_kind(&quickstart, "DisklessTopic");
    assert_eq!(topic["spec"]["clusterRef"]["name"], cluster["metadata"]["name"]);
}

/// The page about Kafka's APIs names what is served, and nothing else.
#[test]
fn the_served_apis_are_documented() {
    let page = std::fs::read_to_string(root().join("docs/kafka-apis.md")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let (key, name, versions) = (cells.next()?.parse::<i16>().ok()?, cells.next()?, cells.next()?);
        let (min, max) = versions.split_once('–')?;
        Some((key, name.to_owned(), min.parse().ok()?, max.parse().ok()?))
    });
    let documented: Vec<(i16, String, i16, i16)> = rows.collect();
    let served = kafka_wire::versions::SUPPORTED.iter();
    let served: Vec<_> = served
        .map(|row| (row.key as i16, format!("{:?}", row.key), row.min, row.max))
        .collect();
    assert_eq!(documented, served);
}
