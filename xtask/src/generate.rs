//! `cargo xtask generate`: the CRDs as files, for people and in the chart, and the API reference, all from the types
//! of the crate `crds`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Parser;
use serde_json::{Map, Value};

use crate::run;

/// Writes what is generated: CRDs, chart CRDs, API reference.
#[derive(Parser)]
pub struct Args {
    /// Writes nothing and fails when a file is stale.
    #[arg(long)]
    pub check: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let stream = run::output(
        Command::new("cargo")
            .args(["run", "--quiet", "--package", "crds", "--example", "definitions"])
            .current_dir(&root),
    )?;
    let mut stale = Vec::new();
    for (path, text) in files(&stream)? {
        let place = root.join(&path);
        if std::fs::read_to_string(&place).is_ok_and(|current| current == text) {
            continue;
        }
        stale.push(path.display().to_string());
        if !args.check {
            if let Some(parent) = place.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(&place, text).with_context(|| format!("cannot write {}", place.display()))?;
        }
    }
    if args.check && !stale.is_empty() {
        bail!("stale, run cargo xtask generate: {}", stale.join(", "));
    }
    for path in stale {
        eprintln!("wrote {path}");
    }
    Ok(())
}

/// Every generated file, relative to the root of the repository, for the CRDs in `stream`.
fn files(stream: &str) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    let mut reference = String::from(REFERENCE_START);
    for text in stream.split("---\n").filter(|text| !text.trim().is_empty()) {
        let text = format!("{}\n", text.trim_end());
        let definition: Value = serde_saphyr::from_str(&text)?;
        let name = definition.pointer("/metadata/name").and_then(Value::as_str).context("a CRD without a name")?;
        files.push((PathBuf::from(format!("crds/generated/{name}.yaml")), text.clone()));
        let template = format!("charts/diskless-operator/templates/crds/{name}.yaml");
        files.push((PathBuf::from(template), chart_template(&text)?));
        kind(&definition, &mut reference)?;
    }
    files.push((PathBuf::from("docs/api.md"), reference));
    Ok(files)
}

/// The CRD as a template of the chart: Helm updates it with the chart, which it does not do in a chart's `crds`
/// folder, and keeps it, and so every object of its kind, when the release is rolled back or removed.
fn chart_template(text: &str) -> anyhow::Result<String> {
    let annotated = text.replacen("metadata:\n", "metadata:\n  annotations:\n    helm.sh/resource-policy: keep\n", 1);
    if annotated == text || text.contains("annotations:") || text.contains("{{") {
        bail!("a CRD is not of the shape that the chart's template is made of");
    }
    Ok(format!(
        "{{{{- /* Written by cargo xtask generate. */}}}}\n{{{{- if .Values.crds.install }}}}\n{annotated}{{{{- end }}}}\n"
    ))
}

const REFERENCE_START: &str = "# API reference

Written by `cargo xtask generate` from the types in `crds/`. Group and version: `diskless.dev/v1alpha1`. What the API
server refuses is under \"type\" and \"rule\"; a field without \"required\" may be left out.
";

/// The section of one kind.
fn kind(definition: &Value, out: &mut String) -> anyhow::Result<()> {
    let names = definition.pointer("/spec/names").context("a CRD without names")?;
    let version = definition.pointer("/spec/versions/0").context("a CRD without a version")?;
    let schema = version.pointer("/schema/openAPIV3Schema").context("a CRD without a schema")?;
    let name = names.get("kind").and_then(Value::as_str).context("a CRD without a kind")?;
    let list = |field: &str| {
        let words = names.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
    };
    writeln!(out, "\n## {name}\n\n{}", description(schema))?;
    let plural = names.get("plural").and_then(Value::as_str).unwrap_or_default();
    let (short, categories) = (list("shortNames"), list("categories"));
    writeln!(out, "\nkubectl knows it as `{plural}`, {short}, and in the category {categories}.")?;
    if let Some(path) = version.pointer("/subresources/scale/specReplicasPath").and_then(Value::as_str) {
        writeln!(out, "`kubectl scale` and autoscalers set `{}`.", path.trim_start_matches('.'))?;
    }
    for rule in rules(schema) {
        writeln!(out, "\nRule: {rule}.")?;
    }
    for part in ["spec", "status"] {
        let Some(schema) = schema.pointer(&format!("/properties/{part}")) else { continue };
        writeln!(out, "\n### {name}.{part}\n\n| field | type | default | meaning |\n| --- | --- | --- | --- |")?;
        fields(schema, "", out)?;
        let rules = rules(schema);
        if !rules.is_empty() {
            writeln!(out, "\nRule: {}.", rules.join(". Rule: "))?;
        }
    }
    Ok(())
}

/// One row for each field below `schema`, parents first.
fn fields(schema: &Value, prefix: &str, out: &mut String) -> anyhow::Result<()> {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array);
    for (name, field) in properties {
        let path = format!("{prefix}{name}");
        let needed = required.is_some_and(|names| names.iter().any(|needed| needed == name));
        let default = match field.get("default") {
            Some(default) => format!("`{default}`"),
            None if needed => "required".to_owned(),
            None => String::new(),
        };
        let mut meaning = description(field);
        for rule in rules(field) {
            write!(meaning, " Rule: {rule}.")?;
        }
        writeln!(out, "| `{path}` | {} | {default} | {} |", type_of(field), cell(&meaning))?;
        if let Some(items) = field.get("items") {
            fields(items, &format!("{path}[]."), out)?;
        }
        fields(field, &format!("{path}."), out)?;
    }
    Ok(())
}

/// The type of a field with what bounds it.
fn type_of(field: &Value) -> String {
    let word = |name: &str| field.get(name).and_then(Value::as_str);
    let number = |name: &str| field.get(name).and_then(Value::as_f64);
    let text = match word("type") {
        _ if field.get("x-kubernetes-int-or-string").is_some() => return "quantity".to_owned(),
        Some("array") => match field.pointer("/items/type").and_then(Value::as_str) {
            Some(items) => format!("list of {items}s"),
            None => "list".to_owned(),
        },
        Some("object") => match field.pointer("/additionalProperties/type").and_then(Value::as_str) {
            Some(values) => format!("map of {values}s"),
            None => "object".to_owned(),
        },
        Some("string") if word("format").is_some() => word("format").unwrap_or_default().to_owned(),
        Some(other) => other.to_owned(),
        None => "any".to_owned(),
    };
    let mut bounds = Vec::new();
    if let Some(values) = field.get("enum").and_then(Value::as_array) {
        let values: Vec<String> = values.iter().filter_map(Value::as_str).map(|value| format!("`{value}`")).collect();
        bounds.push(values.join(" or "));
    }
    let range = |low: &str, high: &str, unit: &str| match (number(low), number(high)) {
        (Some(low), Some(high)) => Some(format!("{low} to {high}{unit}")),
        (Some(low), None) => Some(format!("at least {low}{unit}")),
        (None, Some(high)) => Some(format!("at most {high}{unit}")),
        (None, None) => None,
    };
    bounds.extend(range("minimum", "maximum", ""));
    bounds.extend(range("minLength", "maxLength", " characters"));
    bounds.extend(range("minItems", "maxItems", " items"));
    bounds.extend(range("minProperties", "maxProperties", " entries"));
    if let Some(pattern) = word("pattern") {
        bounds.push(format!("pattern `{}`", cell(pattern)));
    }
    match bounds.is_empty() {
        true => text,
        false => format!("{text}: {}", bounds.join(", ")),
    }
}

fn description(schema: &Value) -> String {
    schema.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ")
}

/// What the CEL rules of a schema refuse with.
fn rules(schema: &Value) -> Vec<String> {
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten();
    rules.filter_map(|rule| rule.get("message").and_then(Value::as_str)).map(str::to_owned).collect()
}

/// Text that does not end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_keeps_the_crd_and_can_be_switched_off() {
        let template = chart_template("kind: X\nmetadata:\n  name: x\nspec:\n  a: 1\n").expect("a template");
        assert_eq!(
            template,
            "{{- /* Written by cargo xtask generate. */}}\n{{- if .Values.crds.install }}\nkind: X\nmetadata:\n  \
             annotations:\n    helm.sh/resource-policy: keep\n  name: x\nspec:\n  a: 1\n{{- end }}\n"
        );
        assert!(chart_template("metadata:\n  name: '{{ x }}'\n").is_err(), "Helm would take it for its own");
    }

    #[test]
    fn a_field_is_shown_with_its_bounds() {
        let field = serde_json::json!({"type": "string", "maxLength": 3, "pattern": "^(a|b)$"});
        assert_eq!(type_of(&field), r"string: at most 3 characters, pattern `^(a\|b)$`");
        let field = serde_json::json!({"type": "integer", "minimum": 1.0, "maximum": 1000.0});
        assert_eq!(type_of(&field), "integer: 1 to 1000");
    }
}
