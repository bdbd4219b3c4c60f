//! Finding texts in a part of another.

use minijinja::{Error, Value};

use crate::chat_template::marked_text::plain;
use crate::chat_template::python::arguments::text;
use crate::chat_template::python::wrong;

/// The part of a text that is searched.
#[derive(Debug)]
pub(super) struct Search<'t> {
    /// `None` if the part begins behind the text's end: not even an empty text is found there.
    part: Option<&'t str>,
    /// Characters before the part.
    chars_before: usize,
}

impl<'t> Search<'t> {
    pub(super) fn new(text: &'t str, start: Option<i64>, stop: Option<i64>) -> Self {
        if start.is_none() && stop.is_none() {
            return Self { part: Some(text), chars_before: 0 };
        }
        let len = text.chars().count() as i64;
        let place = |bound: i64| if bound < 0 { (bound.saturating_add(len)).max(0) } else { bound };
        let (start, stop) = (start.map_or(0, place), stop.map_or(len, place).min(len));
        let byte = |place: i64| text.char_indices().nth(place as usize).map_or(text.len(), |(at, _)| at);
        let part = (start <= stop).then(|| &text[byte(start)..byte(stop)]);
        Self { part, chars_before: start as usize }
    }

    /// Returns whether one text, or any of a tuple of texts, is at an end of the part.
    pub(super) fn touches_any(&self, wanted: &Value, touches: fn(&str, &str) -> bool) -> Result<Value, Error> {
        let wanted: Vec<Value> = match wanted.is_tuple() {
            true => wanted.try_iter()?.collect(),
            false if wanted.as_str().is_some() => vec![wanted.clone()],
            false => return Err(wrong(format!("expected a string or a tuple of strings, got {}", wanted.kind()))),
        };
        for each in &wanted {
            if self.part.is_some_and(|part| text(each).is_ok_and(|each| touches(part, &plain(each)))) {
                return Ok(Value::from(true));
            }
            text(each)?;
        }
        Ok(Value::from(false))
    }

    /// Returns the number of characters before the first occurrence.
    pub(super) fn first(&self, wanted: &str) -> Option<usize> {
        let part = self.part?;
        part.find(&*plain(wanted)).map(|at| self.chars_before + part[..at].chars().count())
    }

    /// Returns the number of characters before the last occurrence.
    pub(super) fn last(&self, wanted: &str) -> Option<usize> {
        let part = self.part?;
        part.rfind(&*plain(wanted)).map(|at| self.chars_before + part[..at].chars().count())
    }

    /// Returns how often a text occurs, without overlaps.
    pub(super) fn count(&self, wanted: &str) -> usize {
        self.part.map_or(0, |part| part.matches(&*plain(wanted)).count())
    }
}
