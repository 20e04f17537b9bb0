//! What both kinds use.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Names an object of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalReference {
    /// Name of the object, in the namespace of the object that refers to it.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// CPU, memory and local disk that each pod asks for and may use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(at_most("cpu")).message("requests.cpu must not be above limits.cpu").field_path(".requests.cpu"),
    validation = Rule::new(at_most("memory")).message("requests.memory must not be above limits.memory").field_path(".requests.memory")
)]
pub struct Resources {
    /// What the scheduler reserves for each pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
    /// What each pod may use at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
}

/// Amounts of the resources that a pod of a diskless cluster uses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct ResourceList {
    /// CPU cores, such as `2` or `500m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub cpu: Option<Quantity>,
    /// Memory, such as `2Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub memory: Option<Quantity>,
    /// Local disk for caches and rebuildable state, such as `10Gi`.
    #[serde(
        rename = "ephemeral-storage",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "quantity")]
    pub ephemeral_storage: Option<Quantity>,
}

impl From<&Resources> for ResourceRequirements {
    fn from(resources: &Resources) -> Self {
        let amounts = |list: &Option<ResourceList>| {
            list.as_ref().map(|list| {
                [
                    ("cpu", &list.cpu),
                    ("memory", &list.memory),
                    ("ephemeral-storage", &list.ephemeral_storage),
                ]
                .into_iter()
                .filter_map(|(name, amount)| Some((name.to_owned(), amount.clone()?)))
                .collect()
            })
        };
        Self {
            claims: None,
            requests: amounts(&resources.requests),
            limits: amounts(&resources.limits),
        }
    }
}

/// CEL: the request of `resource` is not above its limit.
fn at_most(resource: &str) -> String {
    format!(
        "!has(self.requests) || !has(self.requests.{resource}) || !has(self.limits) || !has(self.limits.{resource}) \
         || quantity(string(self.requests.{resource})).compareTo(quantity(string(self.limits.{resource}))) <= 0"
    )
}

/// A quantity as the built-in kinds take it: a number, or a string with a suffix. The pattern is what keeps
/// an amount that no pod could have from being stored.
fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": r"^([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$",
        "maxLength": 32
    })
}

/// Conditions as every Kubernetes API has them: a list with one entry for each type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "description": "Type of the condition.",
                    "type": "string",
                    "pattern": "^[A-Za-z]+$",
                    "maxLength": 64
                },
                "status": {
                    "description": "Whether the condition holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"]
                },
                "reason": {
                    "description": "Why the condition has this status, in one CamelCase word for programs.",
                    "type": "string",
                    "pattern": "^[A-Za-z][A-Za-z0-9]*$",
                    "maxLength": 128
                },
                "message": {
                    "description": "Why the condition has this status, in words for people.",
                    "type": "string",
                    "maxLength": 4096
                },
                "lastTransitionTime": {
                    "description": "When the status changed last.",
                    "type": "string",
                    "format": "date-time"
                },
                "observedGeneration": {
                    "description": "Generation of the object that the condition speaks of.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0
                }
            }
        }
    })
}
