//! Modelfiles: a model, made from another with settings of its own, as text.

use ruvllm_store::{FirstMessage, ModelSettings};
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Parameters that may be given several times.
const LISTS: [&str; 1] = ["stop"];

/// What a Modelfile says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Modelfile {
    pub from: Option<String>,
    pub settings: ModelSettings,
}

/// Parses a Modelfile. Nothing that it names is opened here.
pub(super) fn parse(text: &str) -> Result<Modelfile, ApiError> {
    let mut parsed = Modelfile::default();
    let mut rest = text;
    while let Some((instruction, value, after)) = next(rest)? {
        rest = after;
        let settings = &mut parsed.settings;
        match instruction.to_ascii_uppercase().as_str() {
            "FROM" => parsed.from = Some(value),
            "ADAPTER" => settings.adapters.push(value),
            "SYSTEM" => settings.system = Some(value),
            "TEMPLATE" => settings.template = Some(value),
            "LICENSE" => settings.license.push(value),
            "PARAMETER" => {
                let (name, value) = split(&value).ok_or_else(|| wrong("PARAMETER needs a name and a value"))?;
                add(&mut settings.parameters, name, value);
            }
            "MESSAGE" => {
                let (role, content) = split(&value).ok_or_else(|| wrong("MESSAGE needs a role and a text"))?;
                let message = FirstMessage { role: role.to_owned(), content: unquoted(content).to_owned() };
                settings.messages.push(message);
            }
            // Needs a newer version of Ollama than some: nothing to do.
            "REQUIRES" => {}
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(wrong(&format!("unknown instruction {other:?}")));
            }
        }
    }
    Ok(parsed)
}

fn wrong(message: &str) -> ApiError {
    ApiError::invalid_param("modelfile", format!("the Modelfile cannot be used: {message}"))
}

/// Returns the next instruction, its value, and what follows. Values between `"""` may have several lines.
fn next(text: &str) -> Result<Option<(&str, String, &str)>, ApiError> {
    let mut text = text.trim_start();
    while text.starts_with('#') {
        text = text.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    if text.is_empty() {
        return Ok(None);
    }
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    let (instruction, rest) = text.split_at(end);
    let line_end = rest.find('\n').unwrap_or(rest.len());
    let value = rest[..line_end].trim();
    // `MESSAGE user """…` has a word before the quotes.
    let Some(at) = value.find("\"\"\"") else {
        return Ok(Some((instruction, unquoted(value).to_owned(), &rest[line_end..])));
    };
    let start = rest.find("\"\"\"").unwrap_or_default();
    let body = &rest[start + 3..];
    let length = body.find("\"\"\"").ok_or_else(|| wrong("a text begins with \"\"\" and does not end"))?;
    let before = value[..at].trim();
    let value = if before.is_empty() { body[..length].to_owned() } else { format!("{before} {}", &body[..length]) };
    Ok(Some((instruction, value, &body[length + 3..])))
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

fn split(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once(char::is_whitespace)?;
    Some((name, value.trim_start())).filter(|(_, value)| !value.is_empty())
}

/// Adds a parameter, as a number or a boolean if it is one.
fn add(parameters: &mut Map<String, Value>, name: &str, text: &str) {
    let text = unquoted(text);
    if LISTS.contains(&name) {
        let list = parameters.entry(name).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(text.into());
        }
        return;
    }
    let number = serde_json::from_str::<Value>(text).ok().filter(|value| value.is_number() || value.is_boolean());
    parameters.insert(name.to_owned(), number.unwrap_or_else(|| text.into()));
}

/// Writes a Modelfile that makes a model with these settings.
pub(super) fn write(from: &str, settings: &ModelSettings) -> String {
    let mut text = format!("FROM {from}\n");
    if settings.template.is_some() {
        text.push_str("# Ollama's TEMPLATE of this model is not used: its file has one of its own.\n");
    }
    if let Some(system) = &settings.system {
        text.push_str(&format!("SYSTEM \"\"\"{system}\"\"\"\n"));
    }
    // Adapters of an Ollama installation are files of this machine, which clients are not told of.
    for adapter in settings.adapters.iter().filter(|adapter| !adapter.starts_with('/')) {
        text.push_str(&format!("ADAPTER {adapter}\n"));
    }
    for line in parameters(&settings.parameters).lines() {
        text.push_str(&format!("PARAMETER {line}\n"));
    }
    for FirstMessage { role, content } in &settings.messages {
        text.push_str(&format!("MESSAGE {role} \"\"\"{content}\"\"\"\n"));
    }
    for license in &settings.license {
        text.push_str(&format!("LICENSE \"\"\"{license}\"\"\"\n"));
    }
    text
}

/// Writes parameters, one per line.
pub(super) fn parameters(parameters: &Map<String, Value>) -> String {
    let values = |value: &Value| match value {
        Value::Array(values) => values.clone(),
        value => vec![value.clone()],
    };
    let lines = parameters
        .iter()
        .flat_map(|(name, value)| values(value).into_iter().map(move |value| format!("{name:<30} {value}")));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PIRATE: &str = r#"
# A pirate.
FROM smollm2
ADAPTER parrot
PARAMETER temperature 0.2
parameter stop "<end>"
PARAMETER stop Arr!
PARAMETER num_ctx 2048
SYSTEM """You are
a pirate."""
MESSAGE user Ahoy
MESSAGE assistant """Ahoy,
matey."""
LICENSE "MIT"
"#;

    #[test]
    fn a_modelfile_is_read_and_written() {
        let parsed = parse(PIRATE).unwrap();
        assert_eq!(parsed.from.as_deref(), Some("smollm2"));
        let expected = json!({
            "parameters": {"temperature": 0.2, "stop": ["<end>", "Arr!"], "num_ctx": 2048},
            "system": "You are\na pirate.",
            "messages": [{"role": "user", "content": "Ahoy"}, {"role": "assistant", "content": "Ahoy,\nmatey."}],
            "license": ["MIT"],
            "adapters": ["parrot"],
        });
        assert_eq!(serde_json::to_value(&parsed.settings).unwrap(), expected);
        assert_eq!(parse(&write("smollm2", &parsed.settings)).unwrap(), parsed);
    }

    #[test]
    fn what_is_no_modelfile_is_told() {
        assert_eq!(parse("").unwrap(), Modelfile::default());
        for text in [
            "FORM smollm2",
            "SYSTEM \"\"\"no end",
            "PARAMETER temperature",
            "MESSAGE user",
            "INCLUDE /etc/passwd",
            "\0",
        ] {
            assert_eq!(parse(text).unwrap_err().param.as_deref(), Some("modelfile"), "{text}");
        }
        // A path is only a text here.
        assert_eq!(parse("FROM ../../etc/passwd").unwrap().from.as_deref(), Some("../../etc/passwd"));
    }
}
