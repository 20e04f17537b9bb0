//! A second cluster, whose metadata log is in a PostgreSQL server that runs as a pod.

use serde_json::{Value, json};

use crate::system::{self, Client, System};

/// Its name.
const NAME: &str = "fast";

/// The cluster and its database, until it is dropped.
pub struct Database<'a> {
    system: &'a System,
}

impl<'a> Database<'a> {
    /// Brings both up.
    pub fn start(system: &'a System) -> anyhow::Result<Database<'a>> {
        system::xtask(&["image", "postgres", "--load", "--name", system::CLUSTER])?;
        let database = Database { system };
        let text = std::fs::read_to_string(e2e::root().join("e2e/kind/manifests/postgres.yaml"))?;
        // Where the cluster pulls its images from, if it does.
        let client = system.get(&["pod", "client"])?["spec"]["containers"][0]["image"].clone();
        let image = client
            .as_str()
            .unwrap_or_default()
            .replace("diskless-client:1.7.1", "diskless-postgres:debian");
        let text = text.replace("image: diskless-postgres:debian", &format!("image: {image}"));
        system.apply(&text)?;
        let demo = system.get(&["disklesscluster", "demo"])?["spec"].clone();
        system.apply(&cluster(&demo).to_string())?;
        system.apply(&topic().to_string())?;
        system.kubectl(&["rollout", "status", "deployment/postgres", "--timeout=120s"])?;
        let wait =
            |object: &str| system.kubectl(&["wait", object, "--for=condition=Ready", "--timeout=180s"]);
        wait("disklesscluster/fast")?;
        wait("disklesstopic/fast-orders")?;
        Ok(database)
    }

    pub fn client(&self) -> Client {
        Client::at("fast-bootstrap:9092")
    }

    /// A coordinator is deleted, then the server is killed as a crash would: both come back.
    pub fn fail(&self) -> anyhow::Result<()> {
        self.system
            .kubectl(&["delete", "pod", "fast-coordinator-0", "--wait=true"])?;
        // "Immediate shutdown": what is not in its log by now is lost.
        self.exec(&["kill", "-QUIT", "1"])?;
        self.system.wait("PostgreSQL is back", || {
            let pods = self.system.get(&["pods", "-l", "app=postgres"])?;
            let status = &pods["items"][0]["status"]["containerStatuses"][0];
            Ok(status["restartCount"].as_u64() >= Some(1) && status["ready"] == true)
        })
    }

    /// How many slots all its logs have.
    pub fn slots(&self) -> anyhow::Result<u64> {
        const COUNT: &str = "SELECT count(*) FROM diskless.metalog_slot";
        let psql = format!(
            "PGPASSWORD=$(cat /etc/postgres/password) psql -h 127.0.0.1 -U diskless -d postgres -Atc '{COUNT}'"
        );
        Ok(self.exec(&["sh", "-c", &psql])?.trim().parse()?)
    }

    fn exec(&self, command: &[&str]) -> anyhow::Result<String> {
        self.system
            .output(&[&["exec", "deploy/postgres", "--"], command].concat())
    }
}

impl Drop for Database<'_> {
    /// What other tests count is there no more.
    fn drop(&mut self) {
        for objects in [
            ["disklesstopic", "fast-orders"],
            ["disklesscluster", NAME],
            ["deployment,service", "postgres"],
            ["secret", "metadata-database"],
        ] {
            let [kind, name] = objects;
            let deleted = self
                .system
                .kubectl(&["delete", kind, name, "--ignore-not-found", "--timeout=60s"]);
            if let Err(error) = deleted {
                println!("{error:#}");
            }
        }
    }
}

/// As the demo's, but small.
fn cluster(demo: &Value) -> Value {
    let mut spec = demo.clone();
    spec["brokers"]["replicas"] = 1.into();
    spec["brokers"]["zones"] = json!([{"name": "a"}]);
    spec["objectStore"]["s3"]["prefix"] = NAME.into();
    spec["metadataLog"] = json!({"postgres": {"secretRef": {"name": "metadata-database"}}});
    json!({
        "apiVersion": "diskless.dev/v1alpha1",
        "kind": "DisklessCluster",
        "metadata": {"name": NAME},
        "spec": spec,
    })
}

fn topic() -> Value {
    json!({
        "apiVersion": "diskless.dev/v1alpha1",
        "kind": "DisklessTopic",
        "metadata": {"name": "fast-orders"},
        "spec": {"topicName": system::TOPIC, "clusterRef": {"name": NAME}, "partitions": 3, "deletionPolicy": "Delete"},
    })
}
