//! The operator and `DisklessCluster` objects on a real control plane.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

mod operator_support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crds::DisklessCluster;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use operator_support::*;
use serde_json::json;

/// Nobody listens there.
const NO_BROKER: &str = "127.0.0.1:1";

#[tokio::test(flavor = "multi_thread")]
async fn clusters() {
    let plane = ControlPlane::start().await;
    let operator = Operator::start_counted(&plane, NO_BROKER).await;
    objects_are_made_and_the_status_says_so(&plane).await;
    a_converged_cluster_asks_for_nothing(&plane, &operator).await;
    a_missing_secret_is_named_and_its_creation_noticed(&plane).await;
    a_foreign_object_is_left_alone_and_the_rest_goes_on(&plane).await;
    pods_are_replaced_one_at_a_time_and_a_bad_image_stops_at_the_first(&plane).await;
    brokers_leave_one_at_a_time(&plane).await;
    what_others_change_is_put_right(&plane).await;
    children_go_with_their_cluster(&plane).await;
    another_replica_takes_over(&plane, operator).await;
}

async fn ready_cluster(plane: &ControlPlane, namespace: &str, brokers: i32) -> Api<DisklessCluster> {
    plane.namespace(namespace).await;
    create_secret(plane, namespace).await;
    let clusters: Api<DisklessCluster> = plane.api(namespace);
    apply(&clusters, &cluster("demo", brokers)).await.unwrap();
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    clusters
}

async fn names<K>(plane: &ControlPlane, namespace: &str) -> BTreeSet<String>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=diskless-operator");
    let list = plane.api::<K>(namespace).list(&ours).await.unwrap();
    list.iter().map(ResourceExt::name_any).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn objects_are_made_and_the_status_says_so(plane: &ControlPlane) {
    let clusters = ready_cluster(plane, "objects", 3).await;
    assert_eq!(
        names::<StatefulSet>(plane, "objects").await,
        set(&["demo-a", "demo-b", "demo-coordinator"])
    );
    let services = [
        "demo-a-bootstrap",
        "demo-b-bootstrap",
        "demo-bootstrap",
        "demo-brokers",
        "demo-coordinators",
    ];
    assert_eq!(names::<Service>(plane, "objects").await, set(&services));
    assert_eq!(
        names::<PodDisruptionBudget>(plane, "objects").await,
        set(&["demo-brokers", "demo-coordinators"])
    );
    assert_eq!(names::<ServiceAccount>(plane, "objects").await, set(&["demo"]));
    assert_eq!(names::<ConfigMap>(plane, "objects").await.len(), 3);
    // The namespace enforces the restricted standard, so that the pods are there says that they keep it.
    assert_eq!(names::<Pod>(plane, "objects").await.len(), 5);

    let status = clusters.get("demo").await.unwrap().status.unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (Some(3), Some(3)));
    assert_eq!(
        status.bootstrap.as_deref(),
        Some("demo-bootstrap.objects.svc.cluster.local:9092")
    );
    assert_eq!(
        status.zones[1].bootstrap,
        "demo-b-bootstrap.objects.svc.cluster.local:9092"
    );
    assert_eq!(
        (status.zones[0].ready_replicas, status.zones[1].ready_replicas),
        (2, 1)
    );
    let types: BTreeSet<_> = status
        .conditions
        .iter()
        .map(|condition| condition.type_.as_str())
        .collect();
    assert_eq!(
        types,
        BTreeSet::from(["Ready", "BrokersReady", "CoordinatorsReady", "ObjectStoreReady"])
    );

    // What autoscalers read.
    let scale = clusters.get_scale("demo").await.unwrap();
    let selector = scale
        .status
        .as_ref()
        .and_then(|status| status.selector.clone())
        .unwrap();
    let pods = plane
        .api::<Pod>("objects")
        .list(&ListParams::default().labels(&selector))
        .await
        .unwrap();
    assert_eq!((scale.spec.unwrap().replicas, pods.items.len()), (Some(3), 3));
    // And what they write.
    let more = json!({"spec": {"replicas": 4}});
    clusters
        .patch_scale("demo", &PatchParams::default(), &Patch::Merge(more))
        .await
        .unwrap();
    wait_condition(&clusters, "demo", "Ready", "True").await;
    assert_eq!(names::<Pod>(plane, "objects").await.len(), 6);
    let events = plane.events("objects", "demo").await;
    assert!(
        events.iter().any(|event| event.starts_with("AsSpecified")),
        "{events:?}"
    );
}

/// Versions of the cluster and of everything that it owns.
async fn versions(plane: &ControlPlane, namespace: &str) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    macro_rules! collect {
        ($($kind:ty),*) => {$(
            for object in plane.api::<$kind>(namespace).list(&ListParams::default()).await.unwrap() {
                let name = format!("{} {}", stringify!($kind), object.name_any());
                versions.insert(name, object.resource_version().unwrap());
            }
        )*};
    }
    collect!(
        StatefulSet,
        Service,
        ConfigMap,
        PodDisruptionBudget,
        ServiceAccount,
        Pod
    );
    versions
}

async fn a_converged_cluster_asks_for_nothing(plane: &ControlPlane, operator: &Operator) {
    let clusters = ready_cluster(plane, "quiet", 4).await;
    // Until the last event of the way there has been looked at.
    let mut before = operator.metric("writes_total", "");
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = operator.metric("writes_total", "");
        if now == before {
            break;
        }
        before = now;
    }
    let children = versions(plane, "quiet").await;
    let asked = plane.asked();
    for (verb, resource) in [("get", "secrets"), ("patch", "statefulsets")] {
        let counted = asked.iter().any(|r| r.verb == verb && r.resource == resource);
        assert!(counted, "{verb} {resource} was needed on the way there");
    }
    let status = clusters.get("demo").await.unwrap().status;
    let start = operator.metric("reconciles_total", r#"controller="cluster""#);
    let mut seen = start;
    for round in 0..50 {
        let touch = json!({"metadata": {"annotations": {"test/round": round.to_string()}}});
        clusters
            .patch("demo", &PatchParams::default(), &Patch::Merge(touch))
            .await
            .unwrap();
        eventually("one more reconcile", || async {
            operator.metric("reconciles_total", r#"controller="cluster""#) > seen
        })
        .await;
        seen = operator.metric("reconciles_total", r#"controller="cluster""#);
    }
    assert!(seen - start >= 50.0);
    assert_eq!(operator.metric("writes_total", ""), before);
    assert_eq!(plane.asked()[asked.len()..], [], "neither writes nor reads");
    assert_eq!(versions(plane, "quiet").await, children);
    assert_eq!(clusters.get("demo").await.unwrap().status, status);
}

async fn a_missing_secret_is_named_and_its_creation_noticed(plane: &ControlPlane) {
    plane.namespace("secrets").await;
    let clusters: Api<DisklessCluster> = plane.api("secrets");
    apply(&clusters, &cluster("demo", 2)).await.unwrap();
    let text = wait_condition(&clusters, "demo", "ObjectStoreReady", "False/CredentialsMissing").await;
    assert!(
        text.contains("secret s3-credentials") && text.contains("does not exist"),
        "{text}"
    );
    wait_condition(&clusters, "demo", "Ready", "False/CredentialsMissing").await;

    create_secret(plane, "secrets").await;
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;

    // A key goes: the pods go on, untouched, even when the image changes meanwhile.
    let secrets: Api<Secret> = plane.api("secrets");
    let without = json!({"data": {"secret_access_key": null}});
    secrets
        .patch("s3-credentials", &PatchParams::default(), &Patch::Merge(without))
        .await
        .unwrap();
    let text = wait_condition(&clusters, "demo", "ObjectStoreReady", "False/CredentialsMissing").await;
    assert!(text.contains("no key secret_access_key"), "{text}");
    let pods = versions(plane, "secrets").await;
    let image = json!({"spec": {"image": "registry.example.org/diskless-broker:2"}});
    clusters
        .patch("demo", &PatchParams::default(), &Patch::Merge(image))
        .await
        .unwrap();
    wait_condition(&clusters, "demo", "Ready", "False/CredentialsMissing").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(versions(plane, "secrets").await, pods);

    secrets
        .delete("s3-credentials", &DeleteParams::default())
        .await
        .unwrap();
    create_secret(plane, "secrets").await;
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;

    // The same for that of a database.
    let mut fast = cluster("fast", 2);
    fast["spec"]["metadataLog"] = json!({"postgres": {"secretRef": {"name": "database"}}});
    apply(&clusters, &fast).await.unwrap();
    let text = wait_condition(&clusters, "fast", "Ready", "False/CredentialsMissing").await;
    assert!(
        text.contains("secret database (spec.metadataLog.postgres.secretRef)"),
        "{text}"
    );
    let database = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "database"},
        "stringData": {"url": "postgres://diskless@database.example.org/diskless", "password": "secret"},
    });
    apply(&secrets, &database).await.unwrap();
    wait_condition(&clusters, "fast", "Ready", "True/AsSpecified").await;
}

async fn a_foreign_object_is_left_alone_and_the_rest_goes_on(plane: &ControlPlane) {
    plane.namespace("foreign").await;
    create_secret(plane, "foreign").await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo-bootstrap"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "web"}},
    });
    let services: Api<Service> = plane.api("foreign");
    let service = serde_json::from_value(service).unwrap();
    let before = services.create(&PostParams::default(), &service).await.unwrap();
    let clusters: Api<DisklessCluster> = plane.api("foreign");
    apply(&clusters, &cluster("demo", 2)).await.unwrap();
    let text = wait_condition(&clusters, "demo", "Ready", "False/ApplyFailed").await;
    assert!(text.contains("service demo-bootstrap: exists already"), "{text}");
    wait_condition(&clusters, "demo", "BrokersReady", "True").await;
    assert_eq!(services.get("demo-bootstrap").await.unwrap(), before);
    services
        .delete("demo-bootstrap", &DeleteParams::default())
        .await
        .unwrap();
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
}

/// Watches the pods of a namespace: at no moment may more than one be missing or not serving.
struct Witness {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<String>>,
}

impl Witness {
    fn start(plane: &ControlPlane, namespace: &str, pods: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (api, stopping) = (plane.api::<Pod>(namespace), stop.clone());
        let task = tokio::spawn(async move {
            let mut order: Vec<String> = Vec::new();
            while !stopping.load(Ordering::Relaxed) {
                let list = api.list(&ListParams::default()).await.unwrap();
                let serves = |pod: &&Pod| {
                    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
                    pod.metadata.deletion_timestamp.is_none()
                        && conditions
                            .is_some_and(|list| list.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
                };
                let serving = list.iter().filter(serves).count();
                assert!(serving + 1 >= pods, "only {serving} of {pods} pods serve");
                for pod in &list {
                    let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
                    let seen = format!("{} {image}", pod.name_any());
                    if !order.contains(&seen) {
                        order.push(seen);
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            order
        });
        Self { stop, task }
    }

    /// The pods with their images in the order in which they appeared.
    async fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

async fn pods_are_replaced_one_at_a_time_and_a_bad_image_stops_at_the_first(plane: &ControlPlane) {
    let clusters = ready_cluster(plane, "rolling", 3).await;
    let set_image = async |image: &str| {
        let image = json!({"spec": {"image": image}});
        clusters
            .patch("demo", &PatchParams::default(), &Patch::Merge(image))
            .await
            .unwrap();
    };
    let witness = Witness::start(plane, "rolling", 5);
    set_image("v2").await;
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    let order: Vec<_> = witness
        .end()
        .await
        .into_iter()
        .filter(|pod| pod.ends_with(" v2"))
        .collect();
    assert_eq!(
        order,
        [
            "demo-coordinator-1 v2",
            "demo-coordinator-0 v2",
            "demo-a-1 v2",
            "demo-a-0 v2",
            "demo-b-0 v2"
        ]
    );
    // Only the ConfigMaps in use are left, and the budgets allow what they should.
    assert_eq!(names::<ConfigMap>(plane, "rolling").await.len(), 3);

    let witness = Witness::start(plane, "rolling", 5);
    set_image(BAD_IMAGE).await;
    let text = wait_condition(&clusters, "demo", "Ready", "False/RolloutBlocked").await;
    assert!(
        text.contains("demo-coordinator-1") && text.contains(BAD_IMAGE),
        "{text}"
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    set_image("v4").await;
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    let order = witness.end().await;
    let bad: Vec<_> = order.iter().filter(|pod| pod.ends_with(BAD_IMAGE)).collect();
    assert_eq!(bad, [&format!("demo-coordinator-1 {BAD_IMAGE}")], "{order:?}");
    let fixed: Vec<_> = order.iter().filter(|pod| pod.ends_with(" v4")).collect();
    assert_eq!((fixed[0].as_str(), fixed.len()), ("demo-coordinator-1 v4", 5));
    let events = plane.events("rolling", "demo").await;
    assert!(
        events
            .iter()
            .any(|event| event.starts_with("ReplacingPod: pod demo-a-1")),
        "{events:?}"
    );
}

async fn brokers_leave_one_at_a_time(plane: &ControlPlane) {
    let clusters = ready_cluster(plane, "scaling", 6).await;
    let scale = |replicas: i32| json!({"spec": {"brokers": {"replicas": replicas}}});
    clusters
        .patch("demo", &PatchParams::default(), &Patch::Merge(scale(1)))
        .await
        .unwrap();
    let pods: Api<Pod> = plane.api("scaling");
    let brokers = ListParams::default().labels("app.kubernetes.io/component=broker");
    let mut counts = vec![];
    while clusters.get("demo").await.unwrap().status.unwrap().replicas != Some(1) {
        let leaving = |pod: &&Pod| pod.metadata.deletion_timestamp.is_some();
        let list = pods.list(&brokers).await.unwrap();
        assert!(list.iter().filter(leaving).count() <= 1);
        counts.push(list.items.len());
        counts.dedup();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(counts.windows(2).all(|pair| pair[1] + 1 == pair[0]), "{counts:?}");
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    let left: BTreeSet<_> = pods
        .list(&brokers)
        .await
        .unwrap()
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(left, set(&["demo-a-0"]));
    // A single broker has no budget that could stop the drain of its node.
    eventually("no budget over one broker", || async {
        names::<PodDisruptionBudget>(plane, "scaling").await == set(&["demo-coordinators"])
    })
    .await;
}

async fn what_others_change_is_put_right(plane: &ControlPlane) {
    let clusters = ready_cluster(plane, "drift", 2).await;
    let services: Api<Service> = plane.api("drift");
    let foreign = json!({
        "metadata": {"annotations": {"policy.example.org/seen": "yes"}},
        "spec": {"ports": [{"name": "kafka", "port": 9092, "targetPort": 1}]},
    });
    services
        .patch("demo-bootstrap", &PatchParams::default(), &Patch::Merge(foreign))
        .await
        .unwrap();
    eventually("the port is put right", || async {
        let service = services.get("demo-bootstrap").await.unwrap();
        let port = &service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0];
        let right = port.target_port
            == Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(
                9092,
            ));
        // What others add stays.
        right && service.annotations().contains_key("policy.example.org/seen")
    })
    .await;
    plane
        .api::<StatefulSet>("drift")
        .delete("demo-a", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the statefulset is made again", || async {
        let set = plane.api::<StatefulSet>("drift").get_opt("demo-a").await.unwrap();
        set.is_some_and(|set| set.metadata.deletion_timestamp.is_none())
    })
    .await;
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
}

async fn children_go_with_their_cluster(plane: &ControlPlane) {
    let clusters = ready_cluster(plane, "ending", 2).await;
    clusters.delete("demo", &DeleteParams::default()).await.unwrap();
    eventually("all children are gone", || async {
        versions(plane, "ending").await.is_empty()
    })
    .await;
}

async fn another_replica_takes_over(plane: &ControlPlane, first: Operator) {
    let leases: Api<Lease> = plane.api("default");
    let holder = async || {
        leases
            .get("diskless-operator")
            .await
            .unwrap()
            .spec
            .unwrap()
            .holder_identity
    };
    let before = holder().await;
    let second = Operator::start(plane, NO_BROKER, &["--identity=second"]).await;
    assert_eq!(second.metric("leader", ""), 0.0);
    assert!(first.process.terminate(), "SIGTERM is a clean end");
    eventually("the second leads", || async {
        second.metric("leader", "") == 1.0
    })
    .await;
    let after = holder().await;
    assert_eq!(after.as_deref(), Some("second"));
    assert_ne!(before, after);
    // It finds everything as it should be, and does the work from now on.
    let clusters: Api<DisklessCluster> = plane.api("drift");
    let scale = json!({"spec": {"brokers": {"replicas": 3}}});
    clusters
        .patch("demo", &PatchParams::default(), &Patch::Merge(scale))
        .await
        .unwrap();
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;

    let rss = std::fs::read_to_string(format!("/proc/{}/status", second.process.id())).unwrap();
    let rss = rss
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap()
        .to_owned();
    println!("operator after taking over: {rss}");
}
