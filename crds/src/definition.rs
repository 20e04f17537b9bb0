//! The CustomResourceDefinitions as the API server takes and stores them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{DisklessCluster, DisklessTopic};

/// The definitions of all kinds.
///
/// # Errors
/// When a definition does not survive the way through JSON, which a test rules out.
pub fn all() -> Result<Vec<CustomResourceDefinition>, Error> {
    [DisklessCluster::crd(), DisklessTopic::crd()]
        .into_iter()
        .map(finish)
        .collect()
}

/// The definitions of all kinds as one YAML stream, for `kubectl apply -f -`.
///
/// # Errors
/// As [`all`], or when a definition cannot be written as YAML, which a test rules out.
pub fn to_yaml() -> Result<String, Error> {
    let mut stream = String::new();
    for definition in all()? {
        stream.push_str("---\n");
        stream.push_str(&definition_yaml(&definition)?);
    }
    Ok(stream)
}

/// One definition as YAML, as it is in `crds/generated`.
///
/// # Errors
/// When it cannot be written as YAML, which a test rules out.
pub fn definition_yaml(definition: &CustomResourceDefinition) -> Result<String, Error> {
    let mut value = serde_json::to_value(definition)?;
    whole_numbers(&mut value);
    Ok(serde_saphyr::to_string(&value)?)
}

/// Why a definition could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It does not survive the way through JSON.
    #[error("custom resource definition: {0}")]
    Json(#[from] serde_json::Error),
    /// It does not become YAML.
    #[error("custom resource definition as yaml: {0}")]
    Yaml(#[from] serde_saphyr::SerializeError),
}

/// Turns what the derive makes into what we publish: a status that says "not looked at yet" from the first moment
/// on, and nothing that the API server would drop, so that what is applied equals what is stored.
fn finish(definition: CustomResourceDefinition) -> Result<CustomResourceDefinition, Error> {
    let mut definition = serde_json::to_value(definition)?;
    for version in definition
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") else {
            continue;
        };
        tidy(schema);
        if let Some(status) = schema
            .pointer_mut("/properties/status")
            .and_then(Value::as_object_mut)
        {
            // Without it a new object has no Ready condition, which tools take for "as it should be".
            status.insert("default".into(), initial_status());
        }
    }
    Ok(serde_json::from_value(definition)?)
}

fn initial_status() -> Value {
    json!({
        "conditions": [{
            "type": "Ready",
            "status": "Unknown",
            "reason": "Pending",
            "message": "the operator has not looked at this object yet",
            "lastTransitionTime": "1970-01-01T00:00:00Z"
        }]
    })
}

/// Takes `nullable` out of a schema: a field without a value is absent, and the API server takes a null for an
/// absent field when the schema does not allow null.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("nullable").is_some_and(Value::is_boolean) {
                object.remove("nullable");
            }
            object.values_mut().for_each(tidy);
        }
        Value::Array(values) => values.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Writes whole numbers as such: bounds are floating-point numbers in the types of the API, and `1000.0` in a file
/// would differ for ever from the `1000` that the API server stores.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Object(object) => object.values_mut().for_each(whole_numbers),
        Value::Array(values) => values.iter_mut().for_each(whole_numbers),
        Value::Number(number) => {
            if let Some(float) = number
                .as_f64()
                .filter(|f| number.is_f64() && f.fract() == 0.0 && f.abs() < 1e15)
            {
                *value = json!(float as i64);
            }
        }
        _ => {}
    }
}
