//! A real Kubernetes API server on loopback, without nodes: etcd and kube-apiserver as two processes over a
//! temporary folder. What it stores, defaults, prunes, refuses and authorises is what a cluster does; nothing
//! runs, as there are neither controllers nor kubelets.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::conditions;
use kube::runtime::wait::Condition;
use kube::{Client, Config, ResourceExt};
use tempfile::TempDir;

use crate::clients::tool;
use crate::node::free_port;

/// How long the server may take to answer; machines under test load are slow.
const READY: Duration = Duration::from_secs(90);

/// A request as RBAC sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Resource, such as `pods` or `pods/eviction`.
    pub resource: String,
    /// Namespace; empty for all, and for what has none.
    pub namespace: String,
    /// HTTP status of the answer.
    pub status: u64,
}

/// A running API server. It ends, and its data goes, when this is dropped.
pub struct ApiServer {
    hyperkube: PathBuf,
    processes: Vec<Child>,
    client: Client,
    // Last: the folder goes after the processes that use it.
    dir: TempDir,
}

impl ApiServer {
    /// Starts a server that has only the built-in kinds.
    pub async fn start() -> anyhow::Result<Self> {
        let hyperkube = tool("hyperkube")?;
        let dir = TempDir::new()?;
        let mut processes = Processes(Vec::new());
        let etcd = start_etcd(&hyperkube, dir.path(), &mut processes)?;
        let port = start_apiserver(&hyperkube, dir.path(), &etcd, &mut processes)?;

        let deadline = Instant::now() + READY;
        let certificate = dir.path().join("apiserver.crt");
        while !certificate.exists() {
            processes.alive(dir.path(), deadline)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        std::fs::write(dir.path().join("kubeconfig"), kubeconfig(port, &certificate))?;
        let client = connect(dir.path()).await?;
        // The server makes this namespace itself, after it can store things.
        let namespaces: Api<Namespace> = Api::all(client.clone());
        while namespaces.get("default").await.is_err() {
            processes.alive(dir.path(), deadline)?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // Nor may anybody but the administrator do anything before the built-in roles are there.
        let ready = || hyper::Request::get("/readyz").body(Vec::new());
        while client.request_text(ready()?).await.is_err() {
            processes.alive(dir.path(), deadline)?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(Self {
            hyperkube,
            processes: std::mem::take(&mut processes.0),
            client,
            dir,
        })
    }

    /// Starts a server that also has the project's kinds.
    pub async fn with_crds() -> anyhow::Result<Self> {
        let server = Self::start().await?;
        server.install(&crds::all()?).await?;
        Ok(server)
    }

    /// Installs definitions and waits until their kinds are served.
    pub async fn install(&self, definitions: &[CustomResourceDefinition]) -> anyhow::Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        let deadline = Instant::now() + READY;
        for definition in definitions {
            let name = definition.name_any();
            let mut stored = api
                .patch(&name, &PatchParams::apply("e2e"), &Patch::Apply(definition))
                .await?;
            while !conditions::is_crd_established().matches_object(Some(&stored)) {
                if Instant::now() > deadline {
                    bail!("{name} is not established: {:?}", stored.status);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                stored = api.get(&name).await?;
            }
        }
        Ok(())
    }

    /// A client that may do everything.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// File for `KUBECONFIG`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// File for `KUBECONFIG` of a service account, with a token as a pod of it has.
    pub async fn kubeconfig_of(&self, namespace: &str, account: &str) -> anyhow::Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        let request = TokenRequest::default();
        let token = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        let token = token.status.context("a token request without status")?.token;
        let mut kubeconfig: serde_json::Value = serde_json::from_slice(&std::fs::read(self.kubeconfig())?)?;
        *kubeconfig
            .pointer_mut("/users/0/user/token")
            .context("no token in the kubeconfig")? = token.into();
        let path = self.dir.path().join(format!("kubeconfig.{namespace}.{account}"));
        std::fs::write(&path, kubeconfig.to_string())?;
        Ok(path)
    }

    /// What a service account has asked for up to now.
    pub fn requests_of(&self, namespace: &str, account: &str) -> anyhow::Result<Vec<Request>> {
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let log = std::fs::read_to_string(self.dir.path().join("audit.log"))?;
        // The last line may be half written.
        let complete = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let mut requests = Vec::new();
        for line in complete.lines() {
            let event: serde_json::Value = serde_json::from_str(line)?;
            let Some(object) = event
                .get("objectRef")
                .filter(|_| event["user"]["username"] == *user)
            else {
                continue;
            };
            let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
            let resource = match text("subresource") {
                none if none.is_empty() => text("resource"),
                subresource => format!("{}/{subresource}", text("resource")),
            };
            requests.push(Request {
                verb: event["verb"].as_str().unwrap_or_default().to_owned(),
                group: text("apiGroup"),
                resource,
                namespace: text("namespace"),
                status: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
            });
        }
        Ok(requests)
    }

    /// `kubectl`, of the server's version, speaking to this server.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.hyperkube);
        command
            .arg("kubectl")
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.dir.path());
        command
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        end(&mut self.processes);
    }
}

/// Processes that end unless somebody takes them out.
struct Processes(Vec<Child>);

impl Processes {
    /// Fails when one of them has ended or `deadline` has passed, with the end of their logs.
    fn alive(&mut self, dir: &Path, deadline: Instant) -> anyhow::Result<()> {
        let mut ended = false;
        for child in &mut self.0 {
            ended |= child.try_wait()?.is_some();
        }
        if ended || Instant::now() > deadline {
            let tail = |name: &str| {
                let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().rev().take(15).collect();
                lines.into_iter().rev().collect::<Vec<_>>().join("\n")
            };
            bail!(
                "the API server does not come up\n-- etcd\n{}\n-- kube-apiserver\n{}",
                tail("etcd.log"),
                tail("apiserver.log")
            );
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// Ends processes, the last started first. They keep nothing, so they need no time to say goodbye.
fn end(processes: &mut Vec<Child>) {
    while let Some(mut child) = processes.pop() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn start(hyperkube: &Path, log: &Path, args: &[String], processes: &mut Processes) -> anyhow::Result<()> {
    let file = std::fs::File::create(log)?;
    let child = Command::new(hyperkube)
        .args(args)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start {}", hyperkube.display()))?;
    processes.0.push(child);
    Ok(())
}

fn start_etcd(hyperkube: &Path, dir: &Path, processes: &mut Processes) -> anyhow::Result<String> {
    let client = format!("http://127.0.0.1:{}", free_port());
    let peer = format!("http://127.0.0.1:{}", free_port());
    let args = [
        "etcd".to_owned(),
        "--name=e2e".to_owned(),
        format!("--data-dir={}", dir.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=e2e={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    start(hyperkube, &dir.join("etcd.log"), &args, processes)?;
    Ok(client)
}

fn start_apiserver(
    hyperkube: &Path,
    dir: &Path,
    etcd: &str,
    processes: &mut Processes,
) -> anyhow::Result<u16> {
    let key = rcgen::KeyPair::generate()?;
    let (private, public) = (dir.join("sa.key"), dir.join("sa.pub"));
    std::fs::write(&private, key.serialize_pem())?;
    std::fs::write(&public, key.public_key_pem())?;
    let tokens = dir.join("tokens.csv");
    std::fs::write(&tokens, "admin,admin,1,system:masters\n")?;

    // The administrator does what controllers and users do; what others do is what tests ask for.
    let policy = dir.join("audit.json");
    let rules = serde_json::json!([{"level": "None", "users": ["admin"]}, {"level": "Metadata"}]);
    let text = serde_json::json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules,
    });
    std::fs::write(&policy, text.to_string())?;

    let port = free_port();
    let args = [
        "kube-apiserver".to_owned(),
        format!("--etcd-servers={etcd}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        // The server makes itself a certificate; its CA is in the same file.
        format!("--cert-dir={}", dir.display()),
        format!("--token-auth-file={}", tokens.display()),
        "--authorization-mode=RBAC".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", public.display()),
        format!("--service-account-signing-key-file={}", private.display()),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        // A loopback address is not one that pods could use, and nobody would create the service accounts.
        "--endpoint-reconciler-type=none".to_owned(),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        // On in OpenShift: owning an object needs a permission of its own.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned(),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", dir.join("audit.log").display()),
        "--profiling=false".to_owned(),
    ];
    start(hyperkube, &dir.join("apiserver.log"), &args, processes)?;
    Ok(port)
}

fn kubeconfig(port: u16, certificate: &Path) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "clusters": [{"name": "e2e", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": certificate,
        }}],
        "users": [{"name": "admin", "user": {"token": "admin"}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "admin", "namespace": "default"}}],
    })
    .to_string()
}

async fn connect(dir: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(dir.join("kubeconfig"))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
