//! Names under which a message has its reasoning. Clients and templates do not agree on one, so transformers gives templates
//! two of them, whichever the message has.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

/// In the order in which they are looked for. Templates read the first, but for gpt-oss's and a few others, which read the
/// second.
const NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Returns the message with its reasoning under both names that templates read.
pub(super) fn added(message: &Json) -> Cow<'_, Json> {
    let reasoning = NAMES.iter().filter_map(|name| message.get(name)).find(|reasoning| !reasoning.is_null());
    let (Some(reasoning), Some(fields)) = (reasoning, message.as_object()) else { return Cow::Borrowed(message) };
    let mut named = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
    named.extend(fields.clone());
    named.insert("reasoning_content".to_owned(), reasoning.clone());
    Cow::Owned(Json::Object(named))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasoning_gets_the_names_that_templates_read() {
        let check = |message: Json, expect: Json| assert_eq!(added(&message).to_string(), expect.to_string());
        check(json!({"role": "user"}), json!({"role": "user"}));
        check(
            json!({"role": "assistant", "reasoning_content": "a"}),
            json!({"thinking": "a", "role": "assistant", "reasoning_content": "a"}),
        );
        check(
            json!({"reasoning": "a", "thinking": null, "content": "b"}),
            json!({"thinking": null, "reasoning": "a", "content": "b", "reasoning_content": "a"}),
        );
        check(json!({"thinking": "a", "reasoning_content": "b"}), json!({"thinking": "a", "reasoning_content": "b"}));
    }
}
