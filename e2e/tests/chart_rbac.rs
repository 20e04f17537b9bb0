//! The operator with the rights, the settings and the probes that its chart gives it: enough for everything it does, and
//! no right more.
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
#[path = "operator_support/kafka.rs"]
mod kafka;
mod operator_support;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use chart_support::{chart, helm_at, run};
use crds::{DisklessCluster, DisklessTopic};
use e2e::node::{binary, free_port, http_get};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use operator_support::*;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

const RELEASE: &str = "diskless-operator";

/// The operator of an installed chart, as its pod would run it.
struct Installed {
    child: Child,
    log: NamedTempFile,
    namespace: String,
}

impl Installed {
    async fn start(plane: &ControlPlane, namespace: &str, scope: &str, admin_address: &str) -> Self {
        plane.namespace(namespace).await;
        let arguments = [
            "install",
            RELEASE,
            "--namespace",
            namespace,
            "--set",
            &format!("rbac.scope={scope}"),
        ];
        run(helm_at(&plane.server).args(arguments).arg(chart()));
        let deployment = plane
            .api::<Deployment>(namespace)
            .get(RELEASE)
            .await
            .expect("the Deployment");
        let pod = deployment.spec.template.spec.expect("a pod");
        let container = &pod.containers[0];
        let account = pod.service_account_name.as_deref().expect("a service account");
        let kubeconfig = plane
            .server
            .kubeconfig_of(namespace, account)
            .await
            .expect("a token");

        // Rights take a moment to be known to the API server, and a refusal is what this is about.
        let user = format!("--as=system:serviceaccount:{namespace}:{account}");
        eventually("the rights are known", || async {
            let mut ask = plane.server.kubectl();
            ask.args([
                "auth",
                "can-i",
                "list",
                "disklessclusters.diskless.dev",
                "-n",
                namespace,
                &user,
            ]);
            ask.output().expect("kubectl").status.success()
        })
        .await;

        let program = binary("diskless-operator").expect("operator");
        let help = run(Command::new(&program).args(["run", "--help"]));
        let port = free_port();
        let log = NamedTempFile::new().expect("a log");
        let mut command = Command::new(program);
        for variable in container.env.as_deref().expect("environment") {
            let name = &variable.name;
            assert!(
                help.contains(name) || name == "RUST_LOG" || name == ALLOCATOR,
                "{name} is none of the operator's settings"
            );
            let field = variable
                .value_from
                .as_ref()
                .and_then(|from| from.field_ref.as_ref());
            match field.map(|field| field.field_path.as_str()) {
                None => command.env(name, variable.value.as_deref().unwrap_or_default()),
                Some("metadata.namespace") => command.env(name, namespace),
                Some("metadata.name") => command.env(name, "diskless-operator-0"),
                Some(other) => panic!("{name} is the field {other}"),
            };
        }
        // The one port of the container is the operator's default.
        let ports = container.ports.as_deref().expect("ports");
        assert!(
            help.contains(&format!("default: 0.0.0.0:{}]", ports[0].container_port)),
            "{help}"
        );
        let child = command
            .args(container.args.as_deref().expect("arguments"))
            .arg(format!("--listen=127.0.0.1:{port}"))
            .arg(format!("--admin-address={admin_address}"))
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.reopen().expect("a log"))
            .stderr(log.reopen().expect("a log"))
            .spawn()
            .expect("started");
        let operator = Self {
            child,
            log,
            namespace: namespace.to_owned(),
        };
        for probe in [
            &container.liveness_probe,
            &container.startup_probe,
            &container.readiness_probe,
        ] {
            let probe = probe
                .as_ref()
                .and_then(|probe| probe.http_get.as_ref())
                .expect("a probe");
            let path = probe.path.as_deref().expect("a path");
            eventually(path, || async {
                http_get(port, path).is_ok_and(|(status, _)| status == 200)
            })
            .await;
        }
        operator
    }

    /// Ends it as the kubelet does, and checks that nothing was forbidden to it.
    fn end(mut self, plane: &ControlPlane) -> Vec<e2e::apiserver::Request> {
        run(Command::new("kill").arg(self.child.id().to_string()));
        assert!(self.child.wait().expect("ended").success());
        let log = std::fs::read_to_string(self.log.path()).expect("the log");
        assert!(
            log.lines().all(|line| line.starts_with('{')),
            "the chart asks for JSON: {log}"
        );
        let requests = plane
            .server
            .requests_of(&self.namespace, RELEASE)
            .expect("the audit log");
        let forbidden: BTreeSet<_> = requests.iter().filter(|request| request.status == 403).collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
        assert!(!log.to_lowercase().contains("forbidden"), "{log}");
        requests
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn topic(name: &str) -> Value {
    json!({
        "apiVersion": "diskless.dev/v1alpha1", "kind": "DisklessTopic", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "demo"}, "deletionPolicy": "Delete"},
    })
}

/// Makes another object of the kind that looks as if an earlier version of the cluster had needed it, and waits until
/// it is gone.
async fn leave_behind<K>(api: &Api<K>, change: impl Fn(&mut K))
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug,
    K: serde::de::DeserializeOwned + serde::Serialize,
{
    let ours = ListParams::default().labels("diskless.dev/cluster=demo");
    let present = api.list(&ours).await.expect("objects");
    let mut object = present
        .items
        .into_iter()
        .next()
        .expect("an object of the cluster");
    *object.meta_mut() = ObjectMeta {
        name: Some("demo-left-behind".to_owned()),
        labels: object.meta().labels.clone(),
        owner_references: object.meta().owner_references.clone(),
        ..ObjectMeta::default()
    };
    change(&mut object);
    api.create(&PostParams::default(), &object)
        .await
        .expect("created");
    eventually("what is left behind is gone", || async {
        api.get_opt("demo-left-behind").await.expect("asked").is_none()
    })
    .await;
}

/// What rights say, as (group, resource, verb).
fn granted(role: &Role) -> BTreeSet<(String, String, String)> {
    let mut granted = BTreeSet::new();
    for rule in role.rules.iter().flatten() {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                let verbs = rule.verbs.iter();
                granted.extend(verbs.map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    granted
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_a_namespace_is_enough_and_nothing_in_it_is_unused() {
    let plane = ControlPlane::bare().await;
    let kafka = kafka::Kafka::start().await;
    let operator = Installed::start(&plane, "narrow", "namespace", &kafka.address).await;

    let clusters: Api<DisklessCluster> = plane.api("narrow");
    let topics: Api<DisklessTopic> = plane.api("narrow");
    apply(&clusters, &cluster("demo", 4)).await.unwrap();
    wait_condition(&clusters, "demo", "Ready", "False/CredentialsMissing").await;
    create_secret(&plane, "narrow").await;
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    let sets = plane
        .api::<StatefulSet>("narrow")
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(sets.items.len(), 3, "a zone each, and the coordinators");

    // Pods are replaced, twice for the Events that repeat, and a disruption budget goes with the last broker but one.
    for (image, brokers) in [("v2", 3), ("v3", 1)] {
        let mut changed = cluster("demo", brokers);
        changed["spec"]["image"] = image.into();
        apply(&clusters, &changed).await.unwrap();
        wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    }
    let budgets: Api<PodDisruptionBudget> = plane.api("narrow");
    eventually("the budget is gone", || async {
        budgets.get_opt("demo-brokers").await.unwrap().is_none()
    })
    .await;
    leave_behind(&plane.api::<ConfigMap>("narrow"), |_| {}).await;
    leave_behind(&plane.api::<Service>("narrow"), |service| {
        let spec = service.spec.as_mut().unwrap();
        (spec.cluster_ip, spec.cluster_ips) = (None, None);
    })
    .await;

    for name in ["orders", "stuck"] {
        apply(&topics, &topic(name)).await.unwrap();
        wait_condition(&topics, name, "Ready", "True/AsSpecified").await;
    }
    topics.delete("orders", &DeleteParams::default()).await.unwrap();
    eventually("the topic is gone", || async {
        topics.get_opt("orders").await.unwrap().is_none()
    })
    .await;
    // With no broker to delete it at, the operator looks whether the namespace is going too.
    kafka.stop();
    topics.delete("stuck", &DeleteParams::default()).await.unwrap();
    eventually("the deletion waits", || async {
        let topic = topics.get("stuck").await.unwrap();
        condition(&topic, "Ready").contains("DeletionPending")
    })
    .await;

    let requests = operator.end(&plane);
    let mut used = BTreeSet::new();
    for request in requests {
        assert_eq!(request.namespace, "narrow", "{request:?}");
        let of = |verb: &str| (request.group.clone(), request.resource.clone(), verb.to_owned());
        // An apply that makes the object is two rights.
        if request.verb == "patch" && request.status == 201 {
            used.insert(of("create"));
        }
        used.insert(of(&request.verb));
    }
    // No request: admission asks for it when an owner is named that blocks deletion.
    used.insert((
        "diskless.dev".to_owned(),
        "disklessclusters/finalizers".to_owned(),
        "update".to_owned(),
    ));
    let role = plane.api::<Role>("narrow").get(RELEASE).await.expect("the Role");
    assert_eq!(
        granted(&role),
        used,
        "left: what the chart grants, right: what the operator does"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_role_is_enough_for_all_namespaces() {
    let plane = ControlPlane::bare().await;
    let kafka = kafka::Kafka::start().await;
    let operator = Installed::start(&plane, "system", "cluster", &kafka.address).await;
    for namespace in ["one", "two"] {
        plane.namespace(namespace).await;
        create_secret(&plane, namespace).await;
        apply(&plane.api::<DisklessCluster>(namespace), &cluster("demo", 1))
            .await
            .unwrap();
    }
    for namespace in ["one", "two"] {
        wait_condition(
            &plane.api::<DisklessCluster>(namespace),
            "demo",
            "Ready",
            "True/AsSpecified",
        )
        .await;
    }
    let topics: Api<DisklessTopic> = plane.api("one");
    apply(&topics, &topic("orders")).await.unwrap();
    wait_condition(&topics, "orders", "Ready", "True/AsSpecified").await;
    operator.end(&plane);
}
