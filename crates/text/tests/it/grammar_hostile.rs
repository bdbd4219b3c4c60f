//! Output formats that are meant to hurt: each is an error in time, or compiles and stays within its limits.

use crate::grammar_support::{COMPILER, Dice, allowed_ids};
use ruvllm_text::{GrammarError, MatchError, OutputFormat, Strictness};
use serde_json::{Map, Value, json};

const DEPTH: usize = 30_000;

fn nested(open: &str, inner: &str, close: &str) -> String {
    format!("{}{inner}{}", open.repeat(DEPTH), close.repeat(DEPTH))
}

#[test]
fn nesting_is_refused_before_anything_recurses() {
    let mut schema = Value::Bool(true);
    for _ in 0..2 * DEPTH {
        schema = Value::Object(Map::from_iter([("items".to_owned(), schema)]));
    }
    let output_format = OutputFormat::strict_schema(schema);
    let error = COMPILER.compile(&output_format).unwrap_err();
    assert_eq!(error, GrammarError::TooDeep { what: "JSON schema", max: 128 });
    // Dropping it would recurse.
    std::mem::forget(output_format);
    for (output_format, part) in [
        (OutputFormat::Regex(nested("(", "a", ")")), "nested"),
        (OutputFormat::Regex(nested("[", "a", "]")), "nested"),
        (OutputFormat::Gbnf(format!("root ::= {}", nested("(", "\"a\"", ")"))), "nested more than 64 levels"),
        (OutputFormat::Lark(format!("start: {}", nested("(", "\"a\"", ")"))), "nested more than 64 levels"),
        (OutputFormat::Lark(format!("start: {}", nested("[", "\"a\"", "]"))), "nested more than 64 levels"),
        (OutputFormat::Lark(format!("start: /{}/", nested("(", "a", ")"))), "nested"),
        (OutputFormat::Lark(format!("start: %json {}", nested("[", "1", "]"))), "recursion limit"),
        (OutputFormat::Lark(format!("start: {}\"a\"", "~".repeat(2 * DEPTH))), "cannot be compiled"),
    ] {
        let message = COMPILER.compile(&output_format).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn sources_have_a_maximal_size() {
    let long = "a".repeat(65_537);
    for output_format in [OutputFormat::Regex(long.clone()), OutputFormat::Gbnf(long.clone()), OutputFormat::Lark(long)]
    {
        let error = COMPILER.compile(&output_format).unwrap_err();
        assert!(matches!(error, GrammarError::TooLong { got: 65_537, max: 65_536, .. }), "{error}");
    }
    let schema = OutputFormat::strict_schema(json!({"description": "a".repeat(2 << 20)}));
    assert!(matches!(COMPILER.compile(&schema), Err(GrammarError::TooLong { max: 2_097_152, .. })));
}

/// Compiles and follows a random answer for a while; running into a limit is fine, of time above all: how much of it a
/// machine needs is not tested.
fn exercise(output_format: &OutputFormat) {
    if let OutputFormat::JsonSchema { schema, strictness: Strictness::Strict } = output_format {
        exercise(&OutputFormat::relaxed_schema(schema.clone()));
    }
    let mut matcher = match COMPILER.compile(output_format) {
        Ok(matcher) => matcher,
        Err(error) => {
            let is_relaxed = matches!(output_format, OutputFormat::JsonSchema { strictness: Strictness::Relaxed, .. });
            let is_limit = matches!(error, GrammarError::TooSlow { .. });
            assert!(!is_relaxed || is_limit || error.to_string().contains("nothing satisfies it"), "{error}");
            return;
        }
    };
    let mut dice = Dice::new(1);
    let mut mask = Vec::new();
    for _ in 0..100 {
        if matcher.is_complete() {
            return;
        }
        let step = matcher.mask(&mut mask).and_then(|()| matcher.accept(dice.pick(&allowed_ids(&mask))));
        match step {
            Ok(()) => {}
            Err(MatchError::TooComplex { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn chain(count: usize, rule: impl Fn(usize) -> String) -> String {
    (0..count).map(rule).collect()
}

/// Alternatives in alternatives, each of which looks at what the others evaluate.
fn nested_alternatives(depth: usize) -> Value {
    (0..depth).fold(
        json!({"properties": {"a": {}}}),
        |inner, _| json!({"anyOf": [inner, {"properties": {"b": {}}}], "unevaluatedProperties": false}),
    )
}

#[test]
fn explosions_stay_within_their_limits() {
    let properties: Map<String, Value> = (0..300).map(|number| (format!("p{number}"), json!({}))).collect();
    let tree = |name: &str| {
        let reference = json!({"$ref": format!("#/$defs/{name}")});
        json!({"type": "object", "properties": {"a": reference, "b": reference}})
    };
    let patterns: Map<String, Value> =
        (0..30).map(|number| (format!("a.{{{number},60}}b.*{number}"), json!({"const": number}))).collect();
    let conditions: Vec<Value> = (0..60)
        .map(|number| {
            let name = format!("p{number}");
            json!({"if": {"properties": {name.as_str(): {"const": "a"}}}, "then": {"required": [name]}})
        })
        .collect();
    let many: Vec<Value> = (0..5_000).map(|_| json!({"minLength": 1})).collect();
    for output_format in [
        OutputFormat::Regex("((((a|b){1000}){1000}){1000}){1000}".into()),
        OutputFormat::Regex("(a|b|ab){1,100000}c".into()),
        OutputFormat::Regex(".*a.{400}b.{400}".into()),
        OutputFormat::Regex((0..5_000).map(|number| format!("w{number}")).collect::<Vec<_>>().join("|")),
        OutputFormat::strict_schema(json!({"type": "string", "minLength": 1_000_000, "maxLength": 4_294_967_295u32})),
        OutputFormat::strict_schema(json!({"type": "string", "pattern": "a.{300}b"})),
        OutputFormat::strict_schema(
            json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "array", "minItems": 100_000}}),
        ),
        OutputFormat::strict_schema(json!({"anyOf": many, "properties": properties})),
        OutputFormat::strict_schema(json!({"oneOf": many, "properties": properties})),
        OutputFormat::strict_schema(json!({"not": {"anyOf": many}, "type": "string"})),
        OutputFormat::strict_schema(json!({"type": "object", "patternProperties": patterns, "minProperties": 1})),
        OutputFormat::strict_schema(
            json!({"allOf": conditions, "properties": properties, "unevaluatedProperties": false}),
        ),
        OutputFormat::strict_schema(nested_alternatives(40)),
        OutputFormat::strict_schema(json!({"type": "array", "contains": {"contains": {"contains": {"const": 1}}}})),
        OutputFormat::strict_schema(json!({"type": "object", "properties": properties})),
        OutputFormat::strict_schema(
            json!({"enum": (0..10_000).map(|number| format!("value {number}")).collect::<Vec<_>>()}),
        ),
        OutputFormat::strict_schema(json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"})),
        OutputFormat::strict_schema(
            json!({"allOf": [{"$ref": "#/$defs/s"}, {"$ref": "#/$defs/t"}], "$defs": {"s": tree("s"), "t": tree("t")}}),
        ),
        OutputFormat::strict_schema(json!({"$ref": "#/$defs/0", "$defs": (0..2_000)
            .map(|number| (number.to_string(), json!({"$ref": format!("#/$defs/{}", number + 1)})))
            .collect::<Map<_, _>>()})),
        OutputFormat::strict_schema(json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})),
        OutputFormat::Lark(format!(
            "start: r0\n{}r4000: \"a\"\n",
            chain(4_000, |rule| format!("r{rule}: r{}\n", rule + 1))
        )),
        OutputFormat::Lark(format!(
            "start: T0\n{}T1500: \"a\"\n",
            chain(1_500, |rule| format!("T{rule}: ~T{} \"b\"\n", rule + 1))
        )),
        OutputFormat::Lark(format!(
            "start: r0\n{}r40: \"a\"\n",
            chain(40, |rule| format!("r{rule}: r{0} r{0}\n", rule + 1))
        )),
        OutputFormat::Lark("start: a{1,2000000000}\na: b{1,2000000000}\nb: \"x\" | \"y\"".into()),
        OutputFormat::Lark("start: start \"a\" | \"b\" | start start".into()),
        OutputFormat::Lark("start: a*\na: b?\nb: \"\" | \"x\"".into()),
        OutputFormat::Lark("start: a\na: a".into()),
        OutputFormat::Gbnf(format!(
            "root ::= r0\n{}r1000 ::= \"a\" root?\n",
            chain(1_000, |rule| format!("r{rule} ::= r{}\n", rule + 1))
        )),
        OutputFormat::Gbnf("root ::= \"a\" root root | \"a\"".into()),
        OutputFormat::Gbnf("root ::= \"a\" root".into()),
    ] {
        exercise(&output_format);
    }
}
