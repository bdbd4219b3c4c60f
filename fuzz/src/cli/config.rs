//! Reads any text as `config.toml`.

// The program also reads what is in a switch.
#[allow(dead_code)]
#[path = "../../../src/config/tree.rs"]
mod tree;

use tree::{Table, Value};

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Table::parse(text) {
        Ok(table) => walk(&table, text.lines().count()),
        Err((line, why)) => assert!(line <= text.lines().count() + 1, "line {line}: {why}"),
    }
}

fn walk(table: &Table, lines: usize) {
    for entry in &table.entries {
        assert!((1..=lines).contains(&entry.line), "{entry:?}");
        assert!(table.get(&entry.key).is_some_and(|found| found.value.kind() == entry.value.kind()));
        if let Some(inner) = table.table(&entry.key) {
            walk(inner, lines);
        }
        match &entry.value {
            Value::Switch(_) | Value::Table(_) => {}
            Value::Text(text) => drop(text.clone()),
            Value::List(list) => drop(list.iter().flatten().count()),
        }
    }
}
