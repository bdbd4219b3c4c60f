//! Statistics of repeated measurements.

use serde_json::{Value, json};

/// Median and range of measurements.
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { least: values[0], median: values[values.len() / 2], most: values[values.len() - 1] }
    }

    pub fn to_json(&self) -> Value {
        json!({ "median": self.median, "least": self.least, "most": self.most })
    }

    pub fn row(&self, name: &str, tokens: usize) -> Vec<String> {
        let rate = |value: f64| format!("{value:.1}");
        vec![name.to_owned(), tokens.to_string(), rate(self.median), rate(self.least), rate(self.most)]
    }
}
