//! What a model has besides its file: default parameters, a system message, first messages.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Defaults that a Modelfile gives to a model. The store keeps them and does not know what they mean.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelSettings {
    /// Named as in a Modelfile: `temperature`, `num_ctx`, `stop`, …
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// A template of Ollama, which nothing here can render: it is shown, and the one in the model's file is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// What every conversation begins with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<FirstMessage>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub license: Vec<String>,
    /// Names of adapters in the store that every answer is generated with. Of a model in an Ollama installation, which has its
    /// adapters where it has its models, paths of their files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstMessage {
    pub role: String,
    pub content: String,
}

impl ModelSettings {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These settings where they say something, and otherwise those of `base`.
    pub fn over(self, base: &ModelSettings) -> ModelSettings {
        let mut parameters = base.parameters.clone();
        parameters.extend(self.parameters);
        ModelSettings {
            parameters,
            system: self.system.or_else(|| base.system.clone()),
            template: self.template.or_else(|| base.template.clone()),
            messages: if self.messages.is_empty() { base.messages.clone() } else { self.messages },
            license: if self.license.is_empty() { base.license.clone() } else { self.license },
            adapters: if self.adapters.is_empty() { base.adapters.clone() } else { self.adapters },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn own_settings_win_and_the_rest_is_inherited() {
        let settings = |value: Value| serde_json::from_value::<ModelSettings>(value).unwrap();
        let base = settings(json!({"parameters": {"temperature": 0.1, "top_k": 3}, "system": "Base."}));
        let own = settings(json!({"parameters": {"temperature": 0.9}, "license": ["MIT"]}));
        let expected = json!({"parameters": {"temperature": 0.9, "top_k": 3}, "system": "Base.", "license": ["MIT"]});
        assert_eq!(serde_json::to_value(own.over(&base)).unwrap(), expected);
        assert!(ModelSettings::default().over(&ModelSettings::default()).is_empty());
    }
}
