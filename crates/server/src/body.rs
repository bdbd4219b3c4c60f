//! JSON bodies as types. Errors name the path of the field.

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use ruvllm_store::{closest, misspelt};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde_ignored::Path;

use crate::body_budget::{BodyPermit, Holder};
use crate::error::ApiError;
use crate::ignored::{IgnoredParams, NAMES_MAX};
use crate::observe::Notes;

const MESSAGE_CHARACTERS_MAX: usize = 1024;
const PATH_CHARACTERS_MAX: usize = 256;

/// Extracts a request's body. Unknown fields are refused if `T` denies them, and otherwise noted as ignored.
///
/// Paths end where serde buffers: inside untagged enums and flattened structs only the outer field can be named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Body<T>(pub T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        extract(request, parse).await.map(Self)
    }
}

/// Extracts a body that is a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListBody<T>(pub Vec<T>);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for ListBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        extract(request, parse_list).await.map(Self)
    }
}

/// Reads JSON within its limits.
async fn extract<T: Send + 'static>(
    request: Request,
    parse: fn(&[u8], &IgnoredParams) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    check_content_type(request.headers())?;
    read_within_limits(request, parse).await
}

/// Reads a body of any type within its limits.
pub(crate) async fn read_within_limits<T: Send + 'static>(
    request: Request,
    parse: fn(&[u8], &IgnoredParams) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let (parts, body) = request.into_parts();
    let holder = Holder::of(&parts.extensions);
    let permit = parts.extensions.get::<BodyPermit>().cloned();
    let permit = permit.ok_or_else(|| ApiError::internal("the body has no limits"))?;
    let notes = parts.extensions.get::<Arc<Notes>>().cloned().unwrap_or_default();
    permit.read(&holder, body, move |bytes| parse(bytes, &notes.ignored)).await
}

/// Requires a content type: a browser sends bodies without one, like forms and plain text, for any web page without
/// asking first.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if is_json(headers) {
        return Ok(());
    }
    Err(match headers.get(CONTENT_TYPE) {
        Some(value) => ApiError::wrong_content_type(&String::from_utf8_lossy(value.as_bytes())),
        None => ApiError::no_content_type(),
    })
}

pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()?.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Parses JSON text that is an object.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], ignored: &IgnoredParams) -> Result<T, ApiError> {
    let text = text_of(bytes)?;
    // Derived types would also accept an array of their fields' values.
    if text.trim_start().starts_with('[') {
        return Err(ApiError::invalid("the body is a JSON array; send an object").with_code("invalid_type"));
    }
    parse_text(text, ignored)
}

/// Parses JSON text that is a list.
pub fn parse_list<T: DeserializeOwned>(bytes: &[u8], ignored: &IgnoredParams) -> Result<Vec<T>, ApiError> {
    let text = text_of(bytes)?;
    if !text.trim_start().starts_with('[') {
        return Err(ApiError::invalid("the body is no JSON array; send one").with_code("invalid_type"));
    }
    parse_text(text, ignored)
}

fn text_of(bytes: &[u8]) -> Result<&str, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let message = format!("the body is not UTF-8: byte {} is invalid", error.valid_up_to());
        ApiError::invalid(message).with_code("invalid_utf8")
    })?;
    if text.trim().is_empty() {
        return Err(ApiError::invalid("the body is empty; send JSON").with_code("invalid_json"));
    }
    Ok(text)
}

fn parse_text<T: DeserializeOwned>(text: &str, ignored: &IgnoredParams) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = read(&mut json, "", ignored)?;
    json.end().map_err(|error| explain(&error, String::new()))?;
    Ok(value)
}

/// Reads a type from a body, or from a part of it that was left as JSON until its kind was known: `place` is its path in the
/// body. Its unknown fields are noted, except that one which is a letter away from a known one is an error: whoever
/// wrote it meant the other.
pub(crate) fn read<'de, T, D>(json: D, place: &str, ignored: &IgnoredParams) -> Result<T, ApiError>
where
    T: Deserialize<'de>,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    let mut track = serde_path_to_error::Track::new();
    let mut unknown = Vec::new();
    let note = |path: serde_ignored::Path<'_>| {
        // Bounded: a body can have millions of them.
        if unknown.len() <= NAMES_MAX {
            unknown.push(path_of(&path));
        }
    };
    let value = serde_ignored::deserialize(serde_path_to_error::Deserializer::new(json, &mut track), note);
    let value = value.map_err(|error| {
        let path = match track.path().to_string() {
            path if path == "." && !place.is_empty() => place.to_owned(),
            path => join(place, &path),
        };
        explain(&error, path)
    })?;
    for name in unknown {
        let name = join(place, &name);
        match misspelt(&name, fields_of::<T>()) {
            Some(near) => return Err(unknown_parameter(name.clone(), &format!("did you mean '{near}'?"))),
            None => ignored.note(&name, "it is unknown here")?,
        }
    }
    Ok(value)
}

/// Returns the names of a struct's fields; none for other types.
fn fields_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // Always fails, as there is no value.
    drop(T::deserialize(FieldNames(&mut fields)));
    fields
}

/// A deserializer that only learns which fields are asked for.
struct FieldNames<'f>(&'f mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(Self::Error::custom("no value"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("no value"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Returns a path as errors show it: `messages[0].content`.
fn path_of(path: &serde_ignored::Path<'_>) -> String {
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", path_of(parent)),
        Path::Map { parent, key } => join(&path_of(parent), &clip(key, PATH_CHARACTERS_MAX)),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => path_of(parent),
    }
}

/// Converts serde's errors. Serde reports only text, so the text is parsed; that is tested below.
fn explain(error: &serde_json::Error, path: String) -> ApiError {
    let full = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let said = full.strip_suffix(&place).unwrap_or(&full);
    if said.starts_with("unknown field")
        && let Some(field) = said.split('`').nth(1)
    {
        return unknown_field(field, said, &path);
    }
    // Serde quotes the input, which can be megabytes.
    let said = &clip(said, MESSAGE_CHARACTERS_MAX);
    let path = clip(&path, PATH_CHARACTERS_MAX);
    if said.starts_with("recursion limit") {
        return ApiError::invalid("the JSON is nested too deeply; up to 127 levels are allowed")
            .with_code("json_too_deep");
    }
    if error.is_syntax() || error.is_eof() {
        let message = format!("the body is not valid JSON: {said}{place}");
        return ApiError::invalid(message).with_code("invalid_json");
    }
    let quoted = said.split('`').nth(1);
    if said.starts_with("missing field")
        && let Some(field) = quoted
    {
        let param = join(&path, field);
        let error = ApiError::invalid(format!("'{param}' is required")).with_code("missing_required_parameter");
        return error.with_param(param);
    }
    if said.starts_with("duplicate field")
        && let Some(field) = quoted
    {
        let param = join(parent(&path, field), field);
        let error = ApiError::invalid(format!("'{param}' is given twice")).with_code("duplicate_parameter");
        return error.with_param(param);
    }
    // serde_path_to_error calls the whole body `.`.
    let (what, param) = if path == "." { ("the body".to_owned(), None) } else { (format!("'{path}'"), Some(path)) };
    let error = ApiError::invalid(format!("{what}: {said}")).with_code("invalid_type");
    match param {
        Some(param) => error.with_param(param),
        None => error,
    }
}

fn clip(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn unknown_field(field: &str, said: &str, path: &str) -> ApiError {
    let param = clip(&join(parent(path, field), field), PATH_CHARACTERS_MAX);
    let known: Vec<&str> = said.split('`').skip(3).step_by(2).collect();
    let hint = match closest(field, &known) {
        Some(near) => format!("did you mean '{near}'?"),
        None if known.is_empty() => "no parameters are expected here".to_owned(),
        None => format!("known: {}", known.join(", ")),
    };
    unknown_parameter(param, &hint)
}

fn unknown_parameter(param: String, hint: &str) -> ApiError {
    ApiError::invalid(format!("unknown parameter '{param}'; {hint}")).with_code("unknown_parameter").with_param(param)
}

/// Returns the path without `field` at its end, if it is there.
fn parent<'p>(path: &'p str, field: &str) -> &'p str {
    match path.strip_suffix(field) {
        Some(rest) => rest.strip_suffix('.').unwrap_or(rest),
        None => path,
    }
}

fn join(path: &str, field: &str) -> String {
    match (path, field) {
        ("" | ".", field) => field.to_owned(),
        (path, field) if field.starts_with('[') => format!("{path}{field}"),
        (path, field) => format!("{path}.{field}"),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Chat {
        model: String,
        messages: Vec<Message>,
        temperature: Option<f32>,
        extra: Option<serde_json::Value>,
        role: Option<Role>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Message {
        role: Role,
        content: String,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Role {
        User,
    }

    fn check(body: &str, code: &str, param: Option<&str>, message: &str) {
        let error = parse::<Chat>(body.as_bytes(), &IgnoredParams::default()).expect_err(body);
        assert_eq!(error.code.as_deref(), Some(code), "{error:?}");
        assert_eq!(error.param.as_deref(), param, "{error:?}");
        assert!(error.message.contains(message), "{error:?}");
        assert_eq!(error.status, 400);
    }

    #[test]
    fn a_field_that_is_wrong_is_named_with_its_path() {
        let wrong_content = r#"{"model":"m","messages":[{"role":"user","content":7}]}"#;
        check(wrong_content, "invalid_type", Some("messages[0].content"), "expected a string");
        let wrong_role = r#"{"model":"m","messages":[{"role":"wizard","content":""}]}"#;
        check(wrong_role, "invalid_type", Some("messages[0].role"), "expected `user`");
        let hot = r#"{"model":"m","messages":[],"temperature":"hot"}"#;
        check(hot, "invalid_type", Some("temperature"), "expected f32");
        check("[1, 2]", "invalid_type", None, "send an object");
        check("7", "invalid_type", None, "the body: invalid type: integer `7`");
    }

    #[test]
    fn unknown_fields_are_named_with_what_was_meant() {
        let top = r#"{"model":"m","messages":[],"temprature":1}"#;
        check(top, "unknown_parameter", Some("temprature"), "did you mean 'temperature'?");
        let nested = r#"{"model":"m","messages":[{"role":"user","contents":""}]}"#;
        check(nested, "unknown_parameter", Some("messages[0].contents"), "did you mean 'content'?");
        let far = r#"{"model":"m","messages":[],"banana":1}"#;
        check(far, "unknown_parameter", Some("banana"), "known: model, messages");
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Lenient {
        model: String,
        temperature: Option<f32>,
        options: Option<Options>,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Options {
        include_usage: Option<bool>,
    }

    #[test]
    fn types_that_allow_unknown_fields_have_them_noted() {
        let ignored = IgnoredParams::default();
        let body = r#"{"model":"m","no_stop_trim":true,"options":{"include_usage":true,"x":[1,2]},"top_a":0}"#;
        parse::<Lenient>(body.as_bytes(), &ignored).expect("it is accepted");
        assert_eq!(ignored.all(), ["no_stop_trim", "options.x", "top_a"]);
        let error = parse::<Lenient>(body.as_bytes(), &IgnoredParams::new(true)).expect_err("strict");
        assert_eq!(error.param.as_deref(), Some("no_stop_trim"));
    }

    #[test]
    fn a_misspelt_field_is_an_error_all_the_same() {
        let error = parse::<Lenient>(br#"{"model":"m","temprature":0}"#, &IgnoredParams::default()).expect_err("wrong");
        assert_eq!(error.param.as_deref(), Some("temprature"));
        assert!(error.message.contains("did you mean 'temperature'?"), "{error}");
    }

    #[test]
    fn missing_and_doubled_fields_are_named() {
        check(r#"{"model":"m"}"#, "missing_required_parameter", Some("messages"), "required");
        let nested = r#"{"model":"m","messages":[{"role":"user"}]}"#;
        check(nested, "missing_required_parameter", Some("messages[0].content"), "required");
        check(r#"{"model":"m","model":"n","messages":[]}"#, "duplicate_parameter", Some("model"), "twice");
    }

    #[test]
    fn what_is_not_json_is_told_with_the_place() {
        check("", "invalid_json", None, "empty");
        check(r#"{"model": }"#, "invalid_json", None, "line 1 column 11");
        check(r#"{"model":"m""#, "invalid_json", None, "EOF");
        check(r#"{"model":"m","messages":[]} x"#, "invalid_json", None, "trailing");
        let deep = format!(r#"{{"model":"m","messages":[],"extra":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        check(&deep, "json_too_deep", None, "too deeply");
    }

    #[test]
    fn messages_do_not_repeat_megabytes_of_what_was_sent() {
        let long = "x".repeat(1 << 20);
        for body in [format!(r#"{{"model":"m","messages":"{long}"}}"#), format!(r#"{{"{long}":1}}"#)] {
            let error = parse::<Chat>(body.as_bytes(), &IgnoredParams::default()).expect_err("wrong");
            assert!(error.to_openai().to_string().len() < 4096);
        }
    }

    #[test]
    fn what_is_not_utf_8_is_told_with_the_byte() {
        let error = parse::<Chat>(&b"{\"model\":\"\xff\"}"[..], &IgnoredParams::default()).expect_err("not UTF-8");
        assert_eq!(error.code.as_deref(), Some("invalid_utf8"));
        assert!(error.message.contains("byte 10"), "{}", error.message);
    }
}
