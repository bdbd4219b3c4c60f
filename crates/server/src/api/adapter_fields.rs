//! `adapter` and `lora`: which adapters a request is answered with.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::models::AskedAdapters;

/// Maximum number of adapters of a request.
const ADAPTERS_MAX: usize = 8;
/// Names of a model and of an adapter, with what joins them.
const NAME_BYTES_MAX: usize = 257;
/// Larger weights are no mixture of adapters.
const WEIGHT_MAX: f32 = 100.0;

/// The name of an adapter, or several with their weights.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected the name of an adapter, or a list such as [{\"name\": \"legal\", \"weight\": 0.5}]"
)]
pub enum AdapterField {
    Name(String),
    Several(Vec<WeightedAdapter>),
}

/// One of several adapters.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct WeightedAdapter {
    pub name: String,
    /// 1 by default.
    #[schema(minimum = -100, maximum = 100)]
    pub weight: Option<f32>,
}

/// An adapter by its number, as llama-server's clients name it.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
pub struct LoraScale {
    /// Its number in `GET /lora-adapters`.
    pub id: u32,
    #[schema(minimum = -100, maximum = 100)]
    pub scale: f32,
}

/// Returns what a request says of adapters. What has the weight 0 is not used.
pub(crate) fn asked(adapter: Option<&AdapterField>, lora: Option<&[LoraScale]>) -> Result<AskedAdapters, ApiError> {
    match (adapter, lora) {
        (Some(_), Some(_)) => {
            let message = "adapter and lora say the same in two ways; give one of them";
            Err(ApiError::invalid_param("lora", message))
        }
        (None, None) => Ok(AskedAdapters::Default),
        (None, Some(scales)) => Ok(AskedAdapters::Numbers(numbered("lora", scales)?)),
        (Some(AdapterField::Name(name)), None) => {
            check_name("adapter", name)?;
            // No name: not even those that are used by default.
            Ok(AskedAdapters::Names(if name.is_empty() { Vec::new() } else { vec![(name.clone(), 1.0)] }))
        }
        (Some(AdapterField::Several(several)), None) => {
            check_count("adapter", several.len())?;
            let mut names = Vec::new();
            for (index, WeightedAdapter { name, weight }) in several.iter().enumerate() {
                check_name(&format!("adapter[{index}].name"), name)?;
                let weight = weight.unwrap_or(1.0);
                check_weight(&format!("adapter[{index}].weight"), weight)?;
                if weight != 0.0 {
                    names.push((name.clone(), weight));
                }
            }
            Ok(AskedAdapters::Names(names))
        }
    }
}

/// Returns numbers with their scales, without those that are not used.
pub(crate) fn numbered(field: &str, scales: &[LoraScale]) -> Result<Vec<(u32, f32)>, ApiError> {
    check_count(field, scales.len())?;
    for (index, LoraScale { scale, .. }) in scales.iter().enumerate() {
        check_weight(&format!("{field}[{index}].scale"), *scale)?;
    }
    Ok(scales.iter().filter(|lora| lora.scale != 0.0).map(|lora| (lora.id, lora.scale)).collect())
}

fn check_count(field: &str, count: usize) -> Result<(), ApiError> {
    if count <= ADAPTERS_MAX {
        return Ok(());
    }
    let message = format!("{field} has {count} adapters; up to {ADAPTERS_MAX} can be combined");
    Err(ApiError::invalid_param(field, message))
}

fn check_name(field: &str, name: &str) -> Result<(), ApiError> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(ApiError::invalid_param(field, format!("the name of an adapter has up to {NAME_BYTES_MAX} bytes")))
}

fn check_weight(field: &str, weight: f32) -> Result<(), ApiError> {
    if weight.abs() <= WEIGHT_MAX {
        return Ok(());
    }
    Err(ApiError::invalid_param(field, format!("{field} must be a number from -{WEIGHT_MAX} to {WEIGHT_MAX}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(adapter: Value, lora: Value) -> Result<AskedAdapters, String> {
        let adapter: Option<AdapterField> = serde_json::from_value(adapter).map_err(|error| error.to_string())?;
        let lora: Option<Vec<LoraScale>> = serde_json::from_value(lora).map_err(|error| error.to_string())?;
        asked(adapter.as_ref(), lora.as_deref()).map_err(|error| error.param.unwrap_or_default())
    }

    #[test]
    fn one_name_several_with_weights_and_numbers_are_read() {
        let names = |names: &[(&str, f32)]| {
            AskedAdapters::Names(names.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect())
        };
        assert_eq!(read(json!(null), json!(null)), Ok(AskedAdapters::Default));
        assert_eq!(read(json!("a"), json!(null)), Ok(names(&[("a", 1.0)])));
        assert_eq!(read(json!(""), json!(null)), Ok(names(&[])));
        let several = json!([{"name": "a", "weight": 0.5}, {"name": "b"}, {"name": "c", "weight": 0}]);
        assert_eq!(read(several, json!(null)), Ok(names(&[("a", 0.5), ("b", 1.0)])));
        let lora = json!([{"id": 3, "scale": 0.25}, {"id": 4, "scale": 0.0}]);
        assert_eq!(read(json!(null), lora), Ok(AskedAdapters::Numbers(vec![(3, 0.25)])));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many = json!((0..9).map(|_| json!({"name": "a"})).collect::<Vec<_>>());
        for (adapter, lora, field) in [
            (json!("a"), json!([]), "lora"),
            (many, json!(null), "adapter"),
            (json!("a".repeat(300)), json!(null), "adapter"),
            (json!([{"name": "a", "weight": 1e9}]), json!(null), "adapter[0].weight"),
            (json!(null), json!([{"id": 0, "scale": 1e38}]), "lora[0].scale"),
        ] {
            assert_eq!(read(adapter, lora), Err(field.to_owned()));
        }
        for (adapter, lora) in [(json!(7), json!(null)), (json!(null), json!([{"id": -1, "scale": 1}]))] {
            assert!(read(adapter, lora).is_err());
        }
    }
}
