//! The versions of JSON Schema, and in which of them keywords mean something else.

use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    Draft4,
    Draft6,
    Draft7,
    Draft2019,
    Draft2020,
}

impl Draft {
    /// Returns the draft that `$schema` names; the newest if it names none that we know.
    pub(super) fn of_uri(uri: &str) -> Self {
        let uri = uri.trim_end_matches(['#', '/']);
        let name = uri.strip_prefix("http://").or_else(|| uri.strip_prefix("https://")).unwrap_or(uri);
        match name {
            "json-schema.org/draft-04/schema" => Self::Draft4,
            "json-schema.org/draft-06/schema" => Self::Draft6,
            "json-schema.org/draft-07/schema" => Self::Draft7,
            "json-schema.org/draft/2019-09/schema" => Self::Draft2019,
            _ => Self::Draft2020,
        }
    }

    /// Returns the draft of a schema inside a schema of this draft.
    pub(super) fn of_schema(self, fields: &Map<String, Value>) -> Self {
        fields.get("$schema").and_then(Value::as_str).map_or(self, Self::of_uri)
    }

    /// Returns the keyword that names a schema.
    fn id_keyword(self) -> &'static str {
        if self == Self::Draft4 { "id" } else { "$id" }
    }

    /// Returns whether `$ref` stands alone: whatever is beside it means nothing.
    pub(super) fn references_stand_alone(self) -> bool {
        self <= Self::Draft7
    }

    /// Returns what a schema calls itself: an address, or a name within the document (`#name`).
    pub(super) fn id(self, fields: &Map<String, Value>) -> Option<&str> {
        if self.references_stand_alone() && fields.contains_key("$ref") {
            return None;
        }
        fields.get(self.id_keyword())?.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_known_with_and_without_a_hash_by_either_scheme() {
        for (uri, draft) in [
            ("http://json-schema.org/draft-04/schema#", Draft::Draft4),
            ("https://json-schema.org/draft-04/schema", Draft::Draft4),
            ("http://json-schema.org/draft-06/schema#", Draft::Draft6),
            ("https://json-schema.org/draft-07/schema#", Draft::Draft7),
            ("https://json-schema.org/draft/2019-09/schema", Draft::Draft2019),
            ("http://json-schema.org/draft/2020-12/schema#", Draft::Draft2020),
            ("http://json-schema.org/schema#", Draft::Draft2020),
            ("about:blank", Draft::Draft2020),
        ] {
            assert_eq!(Draft::of_uri(uri), draft, "{uri}");
        }
    }
}
