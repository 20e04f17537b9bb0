//! A control plane and an operator for tests: the API server with the controllers of Kubernetes that matter here
//! (StatefulSets, disruption budgets, garbage, namespaces), the operator's binary, and a stand-in for the kubelets,
//! which says of pods what kubelets would say.
#![allow(dead_code, reason = "not every test file uses all of it")]

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::apiserver::{ApiServer, Request};
use e2e::clients::tool;
use e2e::node::{binary, free_port, http_get};
use k8s_openapi::api::core::v1::{Event, Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

/// How long anything may take; machines under test load are slow.
const PATIENCE: Duration = Duration::from_secs(240);
/// Service account of an operator whose requests are counted.
const ACCOUNT: &str = "counted-operator";
/// A pod with this image never becomes ready.
pub const BAD_IMAGE: &str = "registry.example.org/bad:1";

/// API server, controllers and kubelets.
pub struct ControlPlane {
    pub server: ApiServer,
    _controllers: Process,
    _kubelets: tokio::task::JoinHandle<()>,
}

impl ControlPlane {
    pub async fn start() -> Self {
        Self::over(ApiServer::with_crds().await.expect("API server"))
    }

    /// Without the project's kinds.
    pub async fn bare() -> Self {
        Self::over(ApiServer::start().await.expect("API server"))
    }

    fn over(server: ApiServer) -> Self {
        let controllers = [
            "kube-controller-manager".to_owned(),
            format!("--kubeconfig={}", server.kubeconfig().display()),
            "--controllers=statefulset-controller,disruption-controller,garbage-collector-controller,\
             namespace-controller"
                .replace(' ', ""),
            "--leader-elect=false".to_owned(),
            format!("--secure-port={}", free_port()),
            "--namespace-sync-period=10s".to_owned(),
        ];
        let controllers = Process::start(tool("hyperkube").expect("hyperkube"), &controllers, &[]);
        let kubelets = tokio::spawn(kubelets(server.client()));
        Self {
            server,
            _controllers: controllers,
            _kubelets: kubelets,
        }
    }

    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.server.client(), namespace)
    }

    pub async fn namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.server.client());
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(
                "pod-security.kubernetes.io/enforce".to_owned(),
                "restricted".to_owned(),
            )])),
            ..Default::default()
        };
        let namespace = Namespace {
            metadata,
            ..Default::default()
        };
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .expect("namespace");
    }

    /// File for `KUBECONFIG` of an account that may do everything, and whose requests are counted.
    pub async fn counted_account(&self) -> PathBuf {
        let accounts: Api<ServiceAccount> = self.api("default");
        let account = json!({"metadata": {"name": ACCOUNT}});
        let account = serde_json::from_value(account).expect("account");
        accounts
            .create(&PostParams::default(), &account)
            .await
            .expect("account");
        let bindings: Api<ClusterRoleBinding> = Api::all(self.server.client());
        let binding = json!({
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}],
        });
        let binding = serde_json::from_value(binding).expect("binding");
        bindings
            .create(&PostParams::default(), &binding)
            .await
            .expect("binding");
        eventually("the rights are known", || async {
            let mut ask = self.server.kubectl();
            let user = format!("--as=system:serviceaccount:default:{ACCOUNT}");
            ask.args(["auth", "can-i", "*", "*", "--all-namespaces", &user]);
            ask.output().expect("kubectl").status.success()
        })
        .await;
        self.server
            .kubeconfig_of("default", ACCOUNT)
            .await
            .expect("kubeconfig")
    }

    /// What an operator of that account has asked the API server for up to now, but for what it watches and its lease.
    pub fn asked(&self) -> Vec<Request> {
        let mut requests = self
            .server
            .requests_of("default", ACCOUNT)
            .expect("the audit log");
        requests.retain(|request| request.verb != "watch" && request.resource != "leases");
        requests
    }

    /// Events of an object, as `reason: note`.
    pub async fn events(&self, namespace: &str, object: &str) -> Vec<String> {
        let events: Api<Event> = self.api(namespace);
        let events = events.list(&ListParams::default()).await.expect("events");
        let of = events
            .items
            .into_iter()
            .filter(|event| event.involved_object.name.as_deref() == Some(object));
        of.map(|event| {
            format!(
                "{}: {}",
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default()
            )
        })
        .collect()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self._kubelets.abort();
    }
}

/// A process that ends with its owner.
pub struct Process(Child);

impl Process {
    fn start(program: PathBuf, args: &[String], env: &[(&str, String)]) -> Self {
        let mut command = Command::new(&program);
        command
            .args(args)
            .envs(env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null());
        if std::env::var_os("SHOW_LOGS").is_none() {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        Self(
            command
                .spawn()
                .unwrap_or_else(|error| panic!("{}: {error}", program.display())),
        )
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends SIGTERM and returns whether the process ends well.
    pub fn terminate(mut self) -> bool {
        let killed = Command::new("kill")
            .arg(self.0.id().to_string())
            .status()
            .expect("kill");
        killed.success() && self.0.wait().expect("wait").success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The operator under test.
pub struct Operator {
    pub process: Process,
    port: u16,
}

/// Variable with the settings of the allocator.
pub const ALLOCATOR: &str = "_RJEM_MALLOC_CONF";

/// What the chart gives the operator in a variable.
fn chart_environment(name: &str) -> String {
    let file = e2e::root().join("charts/diskless-operator/templates/deployment.yaml");
    let text = std::fs::read_to_string(file).expect("the chart");
    let (_, rest) = text
        .split_once(&format!("- name: {name}\n"))
        .expect("the chart sets it");
    let value = rest
        .lines()
        .next()
        .and_then(|line| line.trim().strip_prefix("value: "));
    value.expect("a value").trim_matches('"').to_owned()
}

impl Operator {
    /// Starts it and waits until it is ready.
    pub async fn start(plane: &ControlPlane, admin_address: &str, more: &[&str]) -> Self {
        let operator = Self::spawn(plane, admin_address, more);
        eventually("the operator is ready", || async { operator.is_ready() }).await;
        operator
    }

    /// The same; [`ControlPlane::asked`] tells what it asks for.
    pub async fn start_counted(plane: &ControlPlane, admin_address: &str) -> Self {
        let operator = Self::spawn_with(&plane.counted_account().await, admin_address, &[]);
        eventually("the operator is ready", || async { operator.is_ready() }).await;
        operator
    }

    pub fn spawn(plane: &ControlPlane, admin_address: &str, more: &[&str]) -> Self {
        Self::spawn_with(&plane.server.kubeconfig(), admin_address, more)
    }

    pub fn spawn_with(kubeconfig: &Path, admin_address: &str, more: &[&str]) -> Self {
        let port = free_port();
        let mut args: Vec<String> = [
            "run",
            "--broker-image=registry.example.org/diskless-broker:1",
            &format!("--listen=127.0.0.1:{port}"),
            &format!("--admin-address={admin_address}"),
        ]
        .map(str::to_owned)
        .to_vec();
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        let program = binary("diskless-operator").expect("operator");
        let environment = [
            ("KUBECONFIG", kubeconfig.display().to_string()),
            (ALLOCATOR, chart_environment(ALLOCATOR)),
        ];
        Self {
            process: Process::start(program, &args, &environment),
            port,
        }
    }

    /// Whether it lives.
    pub fn answers(&self) -> bool {
        http_get(self.port, "/healthz").is_ok_and(|(status, _)| status == 200)
    }

    pub fn is_ready(&self) -> bool {
        http_get(self.port, "/readyz").is_ok_and(|(status, _)| status == 200)
    }

    /// Sum of all samples of a metric whose labels contain `labels`.
    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        let (_, text) = http_get(self.port, "/metrics").expect("metrics");
        text.lines()
            .filter(|line| {
                line.starts_with(&format!("diskless_operator_{name}{{"))
                    || line.starts_with(&format!("diskless_operator_{name} "))
            })
            .filter(|line| line.contains(labels))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}

/// Waits until `check` says yes.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let start = Instant::now();
    while !check().await {
        assert!(start.elapsed() < PATIENCE, "not so in {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A cluster of two zones with two coordinators.
pub fn cluster(name: &str, brokers: i32) -> Value {
    json!({
        "apiVersion": "diskless.dev/v1alpha1",
        "kind": "DisklessCluster",
        "metadata": {"name": name},
        "spec": {
            "brokers": {"replicas": brokers, "zones": [{"name": "a"}, {"name": "b"}]},
            "coordinators": {"replicas": 2},
            "objectStore": {
                "s3": {"bucket": "records", "prefix": name, "region": "eu-central-1"},
                "credentials": {"secretRef": {"name": "s3-credentials"}},
            },
        },
    })
}

pub async fn create_secret(plane: &ControlPlane, namespace: &str) {
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = plane.api(namespace);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-credentials"},
        "stringData": {"access_key_id": "id", "secret_access_key": "key"},
    });
    secrets
        .create(
            &PostParams::default(),
            &serde_json::from_value(secret).expect("secret"),
        )
        .await
        .expect("secret");
}

/// Creates or changes an object as a user does.
pub async fn apply<K>(api: &Api<K>, object: &Value) -> kube::Result<K>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().expect("name").to_owned();
    api.patch(&name, &PatchParams::apply("user").force(), &Patch::Apply(object))
        .await
}

/// `status/reason: message` of a condition in the JSON of an object; empty when there is none.
pub fn condition(object: &impl serde::Serialize, type_: &str) -> String {
    let object = serde_json::to_value(object).expect("json");
    let conditions = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let of = |condition: &&Value| condition["type"] == type_ && condition["observedGeneration"].is_number();
    let text = |condition: &Value| {
        let field = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
        format!("{}/{}: {}", field("status"), field("reason"), field("message"))
    };
    conditions.iter().find(of).map(text).unwrap_or_default()
}

/// Waits until a condition begins with `beginning`, and returns it.
pub async fn wait_condition<K>(api: &Api<K>, name: &str, type_: &str, beginning: &str) -> String
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize + kube::Resource,
{
    let start = Instant::now();
    loop {
        let object = api.get(name).await.expect("object");
        let newest = serde_json::to_value(&object).expect("json");
        let current = newest["status"]["observedGeneration"] == newest["metadata"]["generation"];
        let text = condition(&object, type_);
        if current && text.starts_with(beginning) {
            return text;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{name}: {type_} is {text:?}, not {beginning:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What kubelets do to pods, as far as the API shows it: run them, and let them go.
async fn kubelets(client: Client) {
    let pods: Api<Pod> = Api::all(client.clone());
    loop {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let Ok(list) = pods.list(&ListParams::default()).await else {
            continue;
        };
        for pod in list {
            let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = api
                    .delete(
                        &pod.name_any(),
                        &kube::api::DeleteParams::default().grace_period(0),
                    )
                    .await;
                continue;
            }
            let container = &pod.spec.as_ref().expect("spec").containers[0];
            let image = container.image.clone().unwrap_or_default();
            if pod
                .status
                .as_ref()
                .and_then(|status| status.container_statuses.as_ref())
                .is_some()
            {
                continue;
            }
            let good = image != BAD_IMAGE;
            let ready = if good { "True" } else { "False" };
            let waiting =
                json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}});
            let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
            let status = json!({"status": {
                "phase": if good { "Running" } else { "Pending" },
                "conditions": [
                    {"type": "PodScheduled", "status": "True"},
                    {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"},
                ],
                "containerStatuses": [{
                    "name": container.name, "image": image, "imageID": "", "ready": good, "restartCount": 0,
                    "state": if good { running } else { waiting },
                }],
            }});
            let _ = api
                .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
                .await;
        }
    }
}
