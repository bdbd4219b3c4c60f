//! The part of TOML that settings need: tables, values as the command line would have them, and their line numbers.

use toml::de::{DeTable, DeValue};

/// In file order.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Switch(bool),
    /// A text or a number; the type of the flag interprets it.
    Text(String),
    /// `None` for values that are neither texts nor numbers.
    List(Vec<Option<String>>),
    Table(Table),
}

impl Table {
    /// Fails with the line and the reason.
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let parsed = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            (line, error.message().to_owned())
        })?;
        Ok(Self::new(parsed.get_ref(), text))
    }

    fn new(table: &DeTable<'_>, text: &str) -> Self {
        let mut entries: Vec<Entry> = table
            .iter()
            .map(|(key, value)| Entry {
                key: key.get_ref().to_string(),
                line: line_of(text, key.span().start),
                value: Value::new(value.get_ref(), text),
            })
            .collect();
        entries.sort_by_key(|entry| entry.line);
        Self { entries }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(super) fn table(&self, key: &str) -> Option<&Table> {
        match &self.get(key)?.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }
}

impl Value {
    fn new(value: &DeValue<'_>, text: &str) -> Self {
        match value {
            DeValue::Boolean(is_on) => Self::Switch(*is_on),
            DeValue::Array(list) => Self::List(list.iter().map(|value| scalar(value.get_ref())).collect()),
            DeValue::Table(table) => Self::Table(Table::new(table, text)),
            value => Self::Text(scalar(value).unwrap_or_default()),
        }
    }

    /// Name of the kind, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Switch(_) => "a boolean",
            Self::Text(_) => "a text or a number",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix()).ok();
            Some(parsed.map_or_else(|| number.as_str().to_owned(), |number| number.to_string()))
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Datetime(datetime) => Some(datetime.to_string()),
        DeValue::Boolean(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn line_of(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|byte| *byte == b'\n').count()
}
