//! What filters and methods may write, charged before they do.

use minijinja::{Error, ErrorKind, State, Value};

use super::render_budget::{RenderBudget, Texts};

pub(super) fn written(state: &mut State, name: &str, values: &[Value]) -> Result<(), Error> {
    let budget = RenderBudget::of(state);
    values.iter().try_for_each(|value| budget.charge_value(value, Texts::Written))?;
    let text = values.first().and_then(Value::as_str).unwrap_or_default();
    match name {
        "replace" => {
            // Counted by its first character, as marks may stand between the others.
            let old = values.get(1).and_then(Value::as_str).and_then(|old| old.chars().next());
            let places = old.map_or_else(|| text.len() + 1, |first| text.matches(first).count());
            let new = values.get(2..).filter(|new| !new.is_empty()).or_else(|| values.get(1..)).unwrap_or_default();
            budget.charge((places as u64).saturating_mul(longest_text(new)))
        }
        "join" => {
            let items = values.iter().map(|value| value.as_str().map_or(value.len(), |text| Some(text.len())));
            let items = items.flatten().max().unwrap_or(0) as u64;
            budget.charge(items.saturating_mul(longest_text(values)))
        }
        "indent" => {
            let lines = text.chars().filter(|char| char.is_control() || char.is_whitespace()).count() as u64 + 1;
            let width = largest_number(&values[1..]).max(longest_text(&values[1..])).max(4);
            budget.charge(lines.saturating_mul(width))
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            budget.charge(largest_number(&values[1..]).saturating_mul(longest_text(&values[1..]).max(1)))
        }
        "format" if has_wide_field(text) => {
            Err(Error::new(ErrorKind::InvalidOperation, "a field of a format is too wide"))
        }
        _ => Ok(()),
    }
}

/// Among arguments, with those that have names.
fn longest_text(arguments: &[Value]) -> u64 {
    let longest = each_argument(arguments).filter_map(|value| value.as_str().map(str::len)).max();
    longest.unwrap_or(0) as u64
}

fn largest_number(arguments: &[Value]) -> u64 {
    each_argument(arguments).filter_map(|value| value.as_usize()).max().unwrap_or(0) as u64
}

fn each_argument(arguments: &[Value]) -> impl Iterator<Item = Value> {
    arguments.iter().flat_map(|argument| match argument.is_kwargs() {
        true => argument.try_iter().into_iter().flatten().filter_map(|name| argument.get_item(&name).ok()).collect(),
        false => vec![argument.clone()],
    })
}

/// Whether a number in a format string has more than four digits, or a width is given as an argument.
pub(super) fn has_wide_field(format: &str) -> bool {
    format.contains('*') || format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4)
}
