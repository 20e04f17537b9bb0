//! The reference of the broker's settings, from the source of their structs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, bail};

use crate::run::root;

const FOLDER: &str = "broker/src/config";

const HEAD: &str = "# Configuration

Generated from `broker/src/config` by `cargo xtask generate`.

`diskless-broker serve --config FILE` reads a TOML file with these sections. Every key can also be given as an environment
variable `DISKLESS_<SECTION>__<KEY>`, which wins; one that is empty counts as absent. A key that is not listed here is an error.
All nodes of a cluster may have the same file but for `[node]`, `listeners.advertised_host` and `internal.advertised_host`.
";

struct Struct {
    doc: String,
    fields: Vec<Field>,
    defaults: BTreeMap<String, String>,
}

struct Field {
    name: String,
    kind: String,
    doc: String,
}

/// `docs/configuration.md`.
pub fn reference() -> anyhow::Result<String> {
    let mut source = String::new();
    let mut files: Vec<_> = fs::read_dir(root().join(FOLDER))?.collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::path);
    for file in files.iter().map(fs::DirEntry::path) {
        if file.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&file)?;
            source += text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        }
    }
    render(&structs(&source)?)
}

fn render(structs: &BTreeMap<String, Struct>) -> anyhow::Result<String> {
    let config = structs.get("Config").context("no struct Config")?;
    let mut out = HEAD.to_owned();
    for section in &config.fields {
        let kind = inner(&section.kind);
        let Some(known) = structs.get(kind) else {
            bail!("section {} is no struct", section.name);
        };
        writeln!(
            out,
            "\n## `[{}]`\n\n{}\n",
            section.name,
            longer(&section.doc, &known.doc)
        )?;
        writeln!(
            out,
            "| key | type | default | meaning |\n| --- | --- | --- | --- |"
        )?;
        for field in &known.fields {
            let name = format!("{}.{}", section.name, field.name);
            if field.doc.is_empty() {
                bail!("{name} has no documentation");
            }
            let (kind, optional) = shown(&field.kind);
            let default = match known.defaults.get(&field.name) {
                Some(expression) => value(expression).with_context(|| format!("default of {name}"))?,
                None if optional => String::new(),
                None => "required".to_owned(),
            };
            writeln!(
                out,
                "| `{name}` | {kind} | {default} | {} |",
                field.doc.replace('|', "\\|")
            )?;
        }
    }
    Ok(out)
}

/// The documentation of a section's field, or that of its struct if that only goes on from there.
fn longer(field: &str, of_struct: &str) -> String {
    let (_, more) = of_struct.split_once(": ").unwrap_or_default();
    let (first, rest) = more.split_at_checked(1).unwrap_or_default();
    let more = first.to_uppercase() + rest;
    let same = |a: &str, b: &str| a.starts_with(b.trim_end_matches('.'));
    match () {
        () if more.is_empty() || same(field, &more) => field.to_owned(),
        () if same(&more, field) => more,
        () => format!("{field} {more}"),
    }
}

fn inner(kind: &str) -> &str {
    kind.strip_prefix("Option<")
        .and_then(|kind| kind.strip_suffix('>'))
        .unwrap_or(kind)
}

/// The type as users know it, and whether it may be absent.
fn shown(kind: &str) -> (&str, bool) {
    let plain = inner(kind);
    let shown = match plain {
        "bool" => "boolean",
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => "integer",
        "String" | "PathBuf" => "string",
        "Vec<Role>" => "array of `broker`, `coordinator`",
        "LogFormat" => "`text` or `json`",
        "BTreeMap<String, u16>" => "table of integers",
        other => other,
    };
    (shown, plain != kind)
}

/// A default as it stands in a file.
fn value(expression: &str) -> anyhow::Result<String> {
    let expression = expression.trim();
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    let text = expression
        .strip_suffix(".to_owned()")
        .or(expression.strip_suffix(".into()"));
    let shown = if let Some(text) = text {
        format!("`{text}`")
    } else if let Some((a, b)) = expression.split_once("<<") {
        let (a, b) = number(a).zip(number(b)).context("not a number")?;
        format!("`{}`", a << b)
    } else if let Some(number) = number(expression) {
        format!("`{number}`")
    } else {
        match expression {
            "true" | "false" => format!("`{expression}`"),
            "None" | "String::new()" | "BTreeMap::new()" | "Vec::new()" => String::new(),
            other => match other.rsplit_once("::") {
                Some((_, variant)) if !variant.contains('(') => format!("`{}`", variant.to_lowercase()),
                _ => bail!("cannot show {other}"),
            },
        }
    };
    Ok(shown)
}

fn structs(source: &str) -> anyhow::Result<BTreeMap<String, Struct>> {
    let mut found: BTreeMap<String, Struct> = BTreeMap::new();
    let mut lines = source.lines().map(str::trim).peekable();
    let mut doc: Vec<String> = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text.trim().to_owned());
        } else if let Some(name) = line
            .strip_prefix("pub struct ")
            .and_then(|rest| rest.strip_suffix(" {"))
        {
            let of = Struct {
                doc: std::mem::take(&mut doc).join(" "),
                fields: fields(&mut lines),
                defaults: BTreeMap::new(),
            };
            found.insert(name.to_owned(), of);
        } else if let Some(name) = line
            .strip_prefix("impl Default for ")
            .and_then(|rest| rest.strip_suffix(" {"))
        {
            let of = found
                .get_mut(name)
                .with_context(|| format!("{name} is declared after its default"))?;
            for line in lines.by_ref().take_while(|line| *line != "}") {
                if let Some((field, value)) = line.split_once(": ") {
                    of.defaults
                        .insert(field.to_owned(), value.trim_end_matches(',').to_owned());
                }
            }
        } else if !line.starts_with("#[") {
            doc.clear();
        }
    }
    Ok(found)
}

fn fields<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<Field> {
    let (mut fields, mut doc, mut skipped) = (Vec::new(), Vec::new(), false);
    for line in lines.take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text.trim().to_owned());
        } else if line == "#[serde(skip)]" {
            skipped = true;
        } else if let Some((name, kind)) = line.strip_prefix("pub ").and_then(|rest| rest.split_once(": ")) {
            let doc = std::mem::take(&mut doc).join(" ");
            if !std::mem::take(&mut skipped) {
                let kind = kind.trim_end_matches(',').to_owned();
                let name = name.to_owned();
                fields.push(Field { name, kind, doc });
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each key of the structs has a row, and each default that the broker has is the one that is shown.
    #[test]
    fn every_setting_has_a_row() {
        let text = reference().unwrap();
        for row in [
            "| `node.roles` | array of `broker`, `coordinator` | required |",
            "| `listeners.port` | integer | `9092` |",
            "| `internal.secret_file` | string |  |",
            "| `produce.flush_bytes` | integer | `4194304` |",
            "| `orphan_scan.interval_ms` | integer | `86400000` |",
            "| `log.format` | `text` or `json` | `text` |",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
    }

    #[test]
    fn a_default_that_cannot_be_shown_is_an_error() {
        assert_eq!(value("256 << 20").unwrap(), "`268435456`");
        assert_eq!(value("\"info\".to_owned()").unwrap(), "`\"info\"`");
        assert!(value("compute(3)").is_err());
    }
}
