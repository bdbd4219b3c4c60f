//! Says how an adapter was merged.

use serde_json::{Value, json};

use super::MergeMethod;
use crate::adapters::AdapterFile;

/// Says how an adapter was made, as JSON.
pub(super) fn recipe(
    adapters: &[(&AdapterFile, f32)],
    method: MergeMethod,
    rank: Option<usize>,
    relative_error: f64,
) -> String {
    let of = adapters.iter().map(|(file, weight)| {
        let name = file.path.file_name().map(|name| name.to_string_lossy().into_owned());
        json!({ "name": name, "id": file.id.to_string(), "weight": weight })
    });
    let mut recipe = json!({
        "method": method.name(),
        "adapters": of.collect::<Vec<Value>>(),
        "rank": rank,
        "relative_error": relative_error,
    });
    match method {
        MergeMethod::Ties { density } => recipe["density"] = density.into(),
        MergeMethod::Dare { density, seed } => {
            recipe["density"] = density.into();
            recipe["seed"] = seed.into();
        }
        MergeMethod::Slerp { t } => recipe["t"] = t.into(),
        MergeMethod::Linear | MergeMethod::TaskArithmetic | MergeMethod::Stack => {}
    }
    recipe.to_string()
}
