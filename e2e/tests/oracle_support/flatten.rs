//! An answer as a list of fields, each with its path, from what `{:#?}` says of it.

use std::fmt::Debug;

/// A field and its value.
pub type Field = (String, String);

/// What is open at a line.
enum Open {
    /// `Name {`: its lines are `field: value`.
    Struct(String),
    /// `[`: its lines are values.
    List(String, usize),
    /// `Some(` or `BrokerId(`: says nothing by itself.
    Wrapper(String),
}

impl Open {
    /// The path of what a line in it says, and the line without its name.
    fn child<'a>(&mut self, line: &'a str) -> (String, &'a str) {
        match self {
            Open::Wrapper(path) => (path.clone(), line),
            Open::List(path, next) => {
                *next += 1;
                (format!("{path}[{}]", *next - 1), line)
            }
            Open::Struct(path) => {
                let (name, rest) = line.split_once(": ").unwrap_or((line, ""));
                let dot = if path.is_empty() { "" } else { "." };
                (format!("{path}{dot}{name}"), rest)
            }
        }
    }
}

/// All fields of `value`, in order. Tagged fields that nobody has sent are left out.
pub fn fields(value: &impl Debug) -> Vec<Field> {
    let text = format!("{value:#?}");
    let mut fields = Vec::new();
    let mut open: Vec<Open> = vec![Open::Wrapper(String::new())];
    for line in text.lines() {
        let line = line.trim();
        let line = line.strip_suffix(',').unwrap_or(line);
        if matches!(line, "}" | "]" | ")") {
            open.pop();
            continue;
        }
        let (path, rest) = open.last_mut().expect("balanced").child(line);
        match rest.chars().last() {
            // A string ends in a quote, whatever it holds.
            Some('{') => open.push(Open::Struct(path)),
            Some('[') => open.push(Open::List(path, 0)),
            Some('(') => open.push(Open::Wrapper(path)),
            _ if path.ends_with("unknown_tagged_fields") && rest == "{}" => {}
            _ => fields.push((path, rest.to_owned())),
        }
    }
    fields
}

#[test]
fn fields_have_paths() {
    #[derive(Debug)]
    #[allow(dead_code, reason = "shown only")]
    struct Inner {
        name: Option<&'static str>,
        none: Option<i32>,
    }
    #[derive(Debug)]
    #[allow(dead_code, reason = "shown only")]
    struct Outer {
        list: Vec<Inner>,
        empty: Vec<i32>,
        numbers: Vec<i32>,
    }
    let inner = Inner {
        name: Some("a: {"),
        none: None,
    };
    let outer = Outer {
        list: vec![inner],
        empty: Vec::new(),
        numbers: vec![7, 8],
    };
    let found = fields(&outer);
    let found: Vec<_> = found
        .iter()
        .map(|(path, value)| format!("{path}={value}"))
        .collect();
    assert_eq!(
        found,
        [
            "list[0].name=\"a: {\"",
            "list[0].none=None",
            "empty=[]",
            "numbers[0]=7",
            "numbers[1]=8"
        ]
    );
}
