//! StatefulSets.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource,
    EnvVar, EnvVarSource, HTTPGetAction, KeyToPath, ObjectFieldSelector, PodAffinityTerm, PodAntiAffinity,
    PodSecurityContext, PodSpec, PodTemplateSpec, Probe, SeccompProfile, SecretKeySelector,
    SecretVolumeSource, SecurityContext, TopologySpreadConstraint, Volume, VolumeMount,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;

use super::super::validate::{
    ACCESS_KEY_ID, CA_CERTIFICATE, POSTGRES_PASSWORD, POSTGRES_URL, SECRET_ACCESS_KEY, ValidatedCluster,
};
use super::config_map::{CREDENTIALS_DIR, DATA_DIR, FILE, POSTGRES_CA_DIR, POSTGRES_DIR};
use super::{ADMIN_PORT, INTERNAL_PORT, KAFKA_PORT, MANAGED_BY, Set, internal_secret, zone_port};

const CONFIG_DIR: &str = "/etc/diskless/config";
const HOSTNAME_KEY: &str = "kubernetes.io/hostname";
const ZONE_KEY: &str = "topology.kubernetes.io/zone";
/// A roll waits this long after a broker is ready. Clients learn its new address by DNS, which is cached (5 s in a cluster's
/// usual DNS, RFC 1034 TTL and negative answers alike), and librdkafka gives up when all brokers it ever spoke to are unreachable at once.
const BROKER_MIN_READY_SECONDS: i32 = 10;
/// User and group of the image.
const USER: i64 = 65532;

/// The StatefulSet of a set, at its full size.
///
/// Pods are started all at once, since none waits for another, and replaced only by the operator (`OnDelete`), which
/// looks at all sets of the cluster before it takes one pod down.
pub fn build(cluster: &ValidatedCluster, set: Set<'_>, config: &ConfigMap) -> StatefulSet {
    let selector = cluster.set_selector(set);
    let mut pod_labels = selector.clone();
    pod_labels.insert("app.kubernetes.io/name".to_owned(), "diskless".to_owned());
    pod_labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    StatefulSet {
        metadata: cluster.metadata(cluster.set_name(set), selector.clone()),
        spec: StatefulSetSpec {
            replicas: Some(cluster.replicas(set)),
            service_name: Some(cluster.headless_service(set)),
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                rolling_update: None,
            }),
            min_ready_seconds: matches!(set, Set::Brokers(..)).then_some(BROKER_MIN_READY_SECONDS),
            revision_history_limit: Some(3),
            selector: LabelSelector {
                match_labels: Some(selector),
                ..Default::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels),
                    ..Default::default()
                }),
                spec: Some(pod(cluster, set, config)),
            },
            ..Default::default()
        },
        status: None,
    }
}

fn pod(cluster: &ValidatedCluster, set: Set<'_>, config: &ConfigMap) -> PodSpec {
    let mut pod = PodSpec {
        service_account_name: Some(cluster.name.clone()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        // Time to flush, to commit and to hand over.
        termination_grace_period_seconds: Some(60),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        containers: vec![container(cluster, set)],
        volumes: Some(volumes(cluster, config)),
        ..Default::default()
    };
    match set {
        Set::Brokers(_, zone) => {
            // The zone comes from here and not from the node, so no rights on nodes are needed.
            pod.node_selector = Some(BTreeMap::from([(ZONE_KEY.to_owned(), zone.name.clone())]));
            pod.topology_spread_constraints = Some(vec![spread(HOSTNAME_KEY, cluster.set_selector(set))]);
        }
        Set::Coordinators => place_coordinators(cluster, set, &mut pod),
    }
    pod
}

fn place_coordinators(cluster: &ValidatedCluster, set: Set<'_>, pod: &mut PodSpec) {
    let selector = cluster.set_selector(set);
    pod.topology_spread_constraints = Some(vec![spread(ZONE_KEY, selector.clone())]);
    let apart = PodAffinityTerm {
        topology_key: HOSTNAME_KEY.to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(selector),
            ..Default::default()
        }),
        ..Default::default()
    };
    let anti_affinity = PodAntiAffinity {
        preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
            weight: 100,
            pod_affinity_term: apart,
        }]),
        ..Default::default()
    };
    let coordinators = &cluster.coordinators;
    pod.node_selector = Some(coordinators.node_selector.clone()).filter(|selector| !selector.is_empty());
    pod.tolerations = Some(coordinators.tolerations.clone()).filter(|tolerations| !tolerations.is_empty());
    pod.affinity = Some(Affinity {
        pod_anti_affinity: Some(anti_affinity),
        ..Default::default()
    });
}

/// Evenly where possible; a pod in a second-best place is better than a pod nowhere.
fn spread(key: &str, selector: BTreeMap<String, String>) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: key.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(selector),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn container(cluster: &ValidatedCluster, set: Set<'_>) -> Container {
    let mut ports = vec![port("internal", INTERNAL_PORT), port("admin", ADMIN_PORT)];
    let mut resources = cluster.coordinators.resources.clone();
    if let Set::Brokers(..) = set {
        ports.push(port("kafka", KAFKA_PORT));
        ports.extend((0..cluster.zones.len()).map(|index| port(&format!("kafka-{index}"), zone_port(index))));
        resources = cluster.broker_resources.clone();
    }
    let mut mounts = vec![
        mount("config", CONFIG_DIR, true),
        mount("data", DATA_DIR, false),
        mount("tmp", "/tmp", false),
        mount("internal", internal_secret::DIR, true),
    ];
    if cluster.object_store.credentials_secret.is_some() {
        mounts.push(mount("credentials", CREDENTIALS_DIR, true));
    }
    if let Some(postgres) = &cluster.postgres {
        mounts.push(mount("postgres", POSTGRES_DIR, true));
        mounts.extend(
            postgres
                .ca_secret
                .iter()
                .map(|_| mount("postgres-ca", POSTGRES_CA_DIR, true)),
        );
    }
    Container {
        name: set.role().to_owned(),
        image: Some(cluster.image.clone()),
        args: Some(vec![
            "serve".to_owned(),
            "--config".to_owned(),
            format!("{CONFIG_DIR}/{FILE}"),
        ]),
        env: Some(environment(cluster, set)),
        ports: Some(ports),
        resources: Some(resources),
        volume_mounts: Some(mounts),
        startup_probe: Some(probe("/healthz", 1, 120)),
        liveness_probe: Some(probe("/healthz", 10, 6)),
        readiness_probe: Some(probe("/readyz", 2, 2)),
        // The line that says why it ended, written there by the broker, or the end of its log.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// What differs from pod to pod, and what nobody may read in a ConfigMap.
fn environment(cluster: &ValidatedCluster, set: Set<'_>) -> Vec<EnvVar> {
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }),
    };
    let value = |name: &str, value: String| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    };
    let service = cluster.headless_service(set);
    let host = format!(
        "$(POD_NAME).{service}.{}.svc.{}",
        cluster.namespace, cluster.cluster_domain
    );
    let mut environment = vec![
        field("POD_NAME", "metadata.name"),
        field(
            "DISKLESS_NODE__ORDINAL",
            "metadata.labels['apps.kubernetes.io/pod-index']",
        ),
        value("DISKLESS_INTERNAL__ADVERTISED_HOST", host.clone()),
    ];
    environment.push(match set {
        Set::Brokers(..) => value("DISKLESS_LISTENERS__ADVERTISED_HOST", host),
        // The label of the node that the scheduler has picked; Kubernetes before 1.35 does not copy it to the pod, and
        // what the configuration file says holds.
        Set::Coordinators => field("DISKLESS_NODE__ZONE", &format!("metadata.labels['{ZONE_KEY}']")),
    });
    environment.extend(cluster.postgres.iter().map(|postgres| EnvVar {
        name: "DISKLESS_METADATA_LOG__URL".to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: postgres.secret.clone(),
                key: POSTGRES_URL.to_owned(),
                optional: None,
            }),
            ..Default::default()
        }),
    }));
    environment
}

fn volumes(cluster: &ValidatedCluster, config: &ConfigMap) -> Vec<Volume> {
    let empty = |name: &str| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Default::default()
    };
    let mut volumes = vec![
        Volume {
            name: "config".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: config.metadata.name.clone().unwrap_or_default(),
                ..Default::default()
            }),
            ..Default::default()
        },
        empty("data"),
        empty("tmp"),
    ];
    let key = |key: &str| KeyToPath {
        key: key.to_owned(),
        path: key.to_owned(),
        ..Default::default()
    };
    let secret = |name: &str, secret: String, items: Vec<KeyToPath>| Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            items: Some(items),
            default_mode: Some(0o440),
            ..Default::default()
        }),
        ..Default::default()
    };
    volumes.push(secret(
        "internal",
        internal_secret::name(&cluster.name),
        vec![key(internal_secret::KEY)],
    ));
    if let Some(name) = &cluster.object_store.credentials_secret {
        let keys = vec![key(ACCESS_KEY_ID), key(SECRET_ACCESS_KEY)];
        volumes.push(secret("credentials", name.clone(), keys));
    }
    if let Some(postgres) = &cluster.postgres {
        let keys = vec![key(POSTGRES_PASSWORD)];
        volumes.push(secret("postgres", postgres.secret.clone(), keys));
        if let Some(name) = &postgres.ca_secret {
            volumes.push(secret("postgres-ca", name.clone(), vec![key(CA_CERTIFICATE)]));
        }
    }
    volumes
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..Default::default()
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..Default::default()
    }
}

fn probe(path: &str, period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(ADMIN_PORT),
            ..Default::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(2),
        failure_threshold: Some(failure_threshold),
        ..Default::default()
    }
}
