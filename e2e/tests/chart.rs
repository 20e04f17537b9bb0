//! The Helm chart: what it renders is what the API server takes, and removing it removes no cluster.
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

mod chart_support;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use chart_support::{chart, helm, helm_at, render, run, text};
use crds::DisklessCluster;
use e2e::apiserver::ApiServer;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

/// What YAML, shells and templates read otherwise than it is meant.
const NASTY: &str = "it's: \"a\" #b {c} [d] {{ .Release.Name }} \\n %s !e &f *g |\n- h: é\t: i";

/// What the API server makes of YAML, without keeping it.
fn offer(server: &ApiServer, yaml: &str) -> Vec<Value> {
    let mut kubectl = server.kubectl();
    kubectl.args([
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-o",
        "json",
        "-f",
        "-",
    ]);
    let mut child = kubectl
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl");
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(yaml.as_bytes())
        .expect("written");
    let output = child.wait_with_output().expect("kubectl");
    let text = text(&output).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    // One object after the other, or one list.
    let objects = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    objects
        .map(|object| object.expect("json"))
        .flat_map(|object| match object["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![object],
        })
        .collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap_or_else(|| panic!("no {kind}"))
}

fn kinds(objects: &[Value]) -> BTreeSet<&str> {
    objects
        .iter()
        .map(|object| object["kind"].as_str().expect("a kind"))
        .collect()
}

async fn namespace(server: &ApiServer, name: &str) {
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    let api: Api<Namespace> = Api::all(server.client());
    api.create(
        &PostParams::default(),
        &serde_json::from_value(namespace).expect("json"),
    )
    .await
    .expect("created");
}

#[tokio::test]
async fn the_api_server_takes_what_is_rendered() {
    let server = ApiServer::start().await.expect("an API server");
    for name in ["system", "123"] {
        namespace(&server, name).await;
    }

    let default = offer(
        &server,
        &render("diskless-operator", "system", &json!({})).unwrap(),
    );
    let always = [
        "CustomResourceDefinition",
        "Deployment",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ];
    let cluster_wide = ["ClusterRole", "ClusterRoleBinding"];
    assert_eq!(
        kinds(&default),
        always.iter().chain(&cluster_wide).copied().collect()
    );
    let container = &of_kind(&default, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "diskless-operator:dev");
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    for object in default
        .iter()
        .filter(|object| object["kind"] == "CustomResourceDefinition")
    {
        assert_eq!(
            object["metadata"]["annotations"]["helm.sh/resource-policy"],
            "keep"
        );
    }
    // All else that may do anything is in the Role, which is about the lease alone.
    let groups = of_kind(&default, "Role")["rules"].as_array().unwrap().iter();
    assert!(
        groups
            .map(|rule| &rule["apiGroups"])
            .eq([&json!(["coordination.k8s.io"])])
    );
    the_pod_is_restricted(&server, of_kind(&default, "Deployment")).await;

    // Names that YAML takes for numbers; nothing beyond the namespace.
    let narrow = offer(
        &server,
        &render("1e3", "123", &json!({"rbac": {"scope": "namespace"}})).unwrap(),
    );
    assert_eq!(kinds(&narrow), always.into());
    for object in narrow
        .iter()
        .filter(|object| object["kind"] != "CustomResourceDefinition")
    {
        assert_eq!(object["metadata"]["namespace"], "123", "{object}");
        assert_eq!(object["metadata"]["name"], "1e3", "{object}");
    }
    let environment = &of_kind(&narrow, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"];
    let watched = environment
        .as_array()
        .unwrap()
        .iter()
        .find(|env| env["name"] == "WATCH_NAMESPACE");
    assert_eq!(watched.unwrap()["value"], "123");

    let without = offer(
        &server,
        &render("a", "system", &json!({"crds": {"install": false}})).unwrap(),
    );
    assert!(!kinds(&without).contains("CustomResourceDefinition"));

    every_value_arrives_as_it_is(&server);
}

/// The API server lets the operator's pod into a namespace that takes only restricted ones.
async fn the_pod_is_restricted(server: &ApiServer, deployment: &Value) {
    let mut pod = deployment["spec"]["template"].clone();
    pod["metadata"]["name"] = "operator".into();
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let pods: Api<Pod> = Api::namespaced(server.client(), "system");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    pods.create(&dry, &pod).await.expect("admitted");
    let mut careless = pod;
    careless.spec.as_mut().expect("a spec").security_context = None;
    assert!(
        pods.create(&dry, &careless).await.is_err(),
        "the namespace takes anything"
    );
}

fn every_value_arrives_as_it_is(server: &ApiServer) {
    let values = json!({
        "image": {"repository": NASTY, "tag": "1e3", "pullPolicy": "Never"},
        "brokerImage": NASTY,
        "imagePullSecrets": [{"name": "123"}],
        "replicas": 2,
        "clusterDomain": NASTY,
        "log": {"format": "text", "level": NASTY},
        "resources": {"requests": {"cpu": "500m", "memory": "1e3"}, "limits": {"memory": "1e9"}},
        "nodeSelector": {"example.org/a": "true"},
        "tolerations": [{"key": "b", "operator": "Equal", "value": "null", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "c", "operator": "In", "values": ["0x1"]}]}
        ]}}},
        "podAnnotations": {"example.org/d": NASTY},
    });
    let objects = offer(server, &render("a", "system", &values).unwrap());
    let deployment = of_kind(&objects, "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let env = |name: &str| {
        let variables = container["env"].as_array().unwrap().iter();
        variables
            .filter(|variable| variable["name"] == name)
            .map(|variable| &variable["value"])
            .next()
            .unwrap()
    };
    assert_eq!(container["image"], format!("{NASTY}:1e3"));
    assert_eq!(container["imagePullPolicy"], "Never");
    assert_eq!(env("DISKLESS_BROKER_IMAGE"), NASTY);
    assert_eq!(pod["imagePullSecrets"], values["imagePullSecrets"]);
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(env("CLUSTER_DOMAIN"), NASTY);
    assert_eq!(
        (env("LOG_FORMAT"), env("RUST_LOG")),
        (&json!("text"), &json!(NASTY))
    );
    assert_eq!(container["resources"], values["resources"]);
    assert_eq!(pod["nodeSelector"], values["nodeSelector"]);
    assert_eq!(pod["tolerations"], values["tolerations"]);
    assert_eq!(pod["affinity"], values["affinity"]);
    assert_eq!(
        deployment["spec"]["template"]["metadata"]["annotations"],
        values["podAnnotations"]
    );
}

#[test]
fn values_that_would_be_ignored_are_refused() {
    for (values, named) in [
        (json!({"brokerimage": "a:1"}), "brokerimage"),
        (json!({"image": {"tag": 1}}), "tag"),
        (json!({"image": {"repository": ""}}), "repository"),
        (json!({"image": {"pullPolicy": "Sometimes"}}), "pullPolicy"),
        (json!({"brokerImage": ""}), "brokerImage"),
        (json!({"imagePullSecrets": ["a"]}), "imagePullSecrets"),
        (json!({"replicas": -1}), "replicas"),
        (json!({"rbac": {"scope": "Namespace"}}), "scope"),
        (json!({"rbac": {"create": false}}), "create"),
        (json!({"log": {"format": "xml"}}), "format"),
        (json!({"podAnnotations": {"a": true}}), "podAnnotations"),
    ] {
        let error = render("a", "b", &values).expect_err("refused");
        assert!(error.contains(named), "{values}: {error}");
    }
}

#[test]
fn helm_finds_nothing_to_say() {
    let home = tempfile::TempDir::new().unwrap();
    run(helm(home.path())
        .args(["lint", "--strict", "--kube-version", "1.35.0"])
        .arg(chart()));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The chart as an older version would be: its topics have no deletion policy.
fn older_chart() -> tempfile::TempDir {
    let folder = tempfile::TempDir::new().unwrap();
    copy(&chart(), folder.path());
    let file = folder.path().join("crds-generated/disklesstopics.yaml");
    let mut definition: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let removed = definition
        .pointer_mut(fields)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .remove("deletionPolicy");
    assert!(removed.is_some());
    std::fs::write(&file, definition.to_string()).unwrap();
    folder
}

#[tokio::test]
async fn upgrades_bring_new_definitions_and_removal_keeps_clusters() {
    let server = ApiServer::start().await.expect("an API server");
    namespace(&server, "system").await;
    let install = |chart: &Path| {
        let arguments = [
            "upgrade",
            "--install",
            "diskless-operator",
            "--namespace",
            "system",
        ];
        run(helm_at(&server).args(arguments).arg(chart));
    };
    let topics = || async {
        let api: Api<CustomResourceDefinition> = Api::all(server.client());
        serde_json::to_value(
            api.get("disklesstopics.diskless.dev")
                .await
                .expect("the definition"),
        )
        .unwrap()
        .to_string()
    };
    install(older_chart().path());
    assert!(!topics().await.contains("\"deletionPolicy\":"));
    install(&chart());
    assert!(topics().await.contains("\"deletionPolicy\":"));

    let quickstart = e2e::root().join("docs/examples/quickstart.yaml");
    run(server.kubectl().args([
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "crd",
        "--all",
    ]));
    run(server.kubectl().arg("apply").arg("-f").arg(quickstart));
    run(helm_at(&server).args(["uninstall", "diskless-operator", "--namespace", "system"]));
    let clusters: Api<DisklessCluster> = Api::namespaced(server.client(), "default");
    let uid = clusters.get("demo").await.expect("kept").metadata.uid;
    let left = run(server.kubectl().args([
        "-n",
        "system",
        "get",
        "deployment,role,serviceaccount",
        "-o",
        "name",
    ]));
    assert_eq!(left.trim(), "");

    install(&chart());
    assert_eq!(clusters.get("demo").await.expect("kept").metadata.uid, uid);
}
