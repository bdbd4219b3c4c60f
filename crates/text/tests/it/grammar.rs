//! Output formats on the default model's real vocabulary.

use crate::support;
use std::sync::Arc;

use crate::grammar_support::{
    COMPILER, Dice, TOKENIZER, allowed_ids, follow, is_allowed, random_answer, random_answer_of,
};
use ruvllm_text::{GrammarCompiler, GrammarError, MatchError, Matcher, OutputFormat, SpecialTokens};
use serde_json::{Map, Value, json};

fn check(output_format: &OutputFormat, accepted: &[&str], refused: &[&str]) {
    for text in accepted {
        let verdict = follow(&mut COMPILER.compile(output_format).unwrap(), text);
        assert_eq!(verdict, Ok(()), "{text:?} by {output_format:?}");
    }
    for text in refused {
        assert!(follow(&mut COMPILER.compile(output_format).unwrap(), text).is_err(), "{text:?} by {output_format:?}");
    }
}

fn refusal(output_format: OutputFormat) -> String {
    match COMPILER.compile(&output_format) {
        Ok(_) => panic!("{output_format:?} compiles"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn json_mode_accepts_objects_only() {
    check(
        &OutputFormat::JsonObject,
        &[r#"{}"#, "{\"a\": [1, -2.5e3, true, null, \"x\\ny é 日本\"],\n    \"b\": {}}"],
        &["[]", "1", "", "{", "{\"a\": 01}", "{\"a\": \"\n\"}", " {}", "{} ", "{}{}"],
    );
}

#[test]
fn blanks_between_parts_are_limited() {
    let blanks = |count: usize| format!("{{{}}}", " ".repeat(count));
    check(&OutputFormat::JsonObject, &[&blanks(41)], &[&blanks(42)]);
}

#[test]
fn a_regular_expression_matches_the_whole_answer() {
    let phone = OutputFormat::Regex(r"^\+?[0-9]{3,5}(-[0-9]{2}){2}$".into());
    check(&phone, &["123-45-67", "+12345-00-11"], &["12-45-67", "123-45-67-89", "x123-45-67", "123-45-67\n"]);
    check(&OutputFormat::Regex("yes|no|日本".into()), &["yes", "no", "日本"], &["maybe", "yesno", "日"]);
    check(&OutputFormat::Regex("".into()), &[""], &["a"]);
    check(&OutputFormat::Regex("a/b\\/c\n".into()), &["a/b/c\n"], &["a/b"]);
}

#[test]
fn lark_grammars_work_and_cannot_name_tokens() {
    let sums = "start: NUMBER (OPERATOR NUMBER)*\nNUMBER: /[0-9]+/\nOPERATOR: \"+\" | \"-\"\n%ignore \" \"\n";
    check(&OutputFormat::Lark(sums.into()), &["1", "12 + 3-4"], &["", "+", "1 +"]);
    let nested = r#"start: "ok: " %json {"type": "array", "items": {"type": "integer"}}"#;
    check(&OutputFormat::Lark(nested.into()), &["ok: [1, 2]"], &["ok: [1.5]", "[1]"]);
    for (source, part) in [
        ("start: <|im_end|>", "tokens cannot be named"),
        ("start: \"a\"\n\nb: <[2]>", "line 3: tokens cannot be named"),
        ("%llguidance {\"allow_invalid_utf8\": true}\nstart: \"a\"", "\"%llguidance\" is not supported"),
        ("start: @other", "other grammars"),
        ("start: a\na[max_tokens=3]: /x*/", "line 2: the attribute \"max_tokens\""),
        ("start: a\na[stop=\"x\"]: /.*/", "line 2: the attribute \"stop\""),
        ("start: %json {\"x-guidance\": {\"lenient\": true}, \"uniqueItems\": true}", "\"uniqueItems\" at #"),
        ("start: missing", "unknown name"),
        ("rule: \"a\"", "no start rule"),
        ("start: /(/", "line 1: the regular expression \"(\""),
        ("start: \"a", "line 1: the string does not end"),
    ] {
        let message = refusal(OutputFormat::Lark(source.into()));
        assert!(message.contains(part), "{source}: {message}");
    }
}

#[test]
fn control_tokens_are_never_allowed_as_text() {
    let output_formats = [
        OutputFormat::Regex("(?s:.*)".into()),
        OutputFormat::JsonObject,
        OutputFormat::Gbnf("root ::= .*".into()),
        OutputFormat::Regex(r"<\|im_start\|>(user|system)".into()),
    ];
    let mut mask = Vec::new();
    for output_format in output_formats {
        let mut matcher = COMPILER.compile(&output_format).unwrap();
        let mut dice = Dice::new(3);
        for _ in 0..30 {
            matcher.mask(&mut mask).unwrap();
            assert_eq!(mask.len(), TOKENIZER.vocab_size().div_ceil(32));
            let may_end = matcher.may_end().unwrap();
            for id in allowed_ids(&mask) {
                assert_eq!(TOKENIZER.is_end_of_generation(id), TOKENIZER.is_control(id), "{id} in {output_format:?}");
                assert!(may_end || !TOKENIZER.is_control(id));
            }
            assert!(TOKENIZER.end_of_generation().iter().all(|&id| is_allowed(&mask, id) == may_end));
            let text: Vec<u32> = allowed_ids(&mask).into_iter().filter(|&id| !TOKENIZER.is_control(id)).collect();
            if text.is_empty() {
                break;
            }
            matcher.accept(dice.pick(&text)).unwrap();
        }
    }
    // Spelled out, the same text is a text like any other.
    check(&OutputFormat::Regex(r"<\|im_start\|>user".into()), &["<|im_start|>user"], &["<|im_start|>"]);
}

#[test]
fn what_is_not_allowed_changes_nothing_and_everything_can_be_taken_back() {
    let text = r#"{"a": [1, 2, {"b": "c"}]}"#;
    let ids = TOKENIZER.encode(text, SpecialTokens::AsText);
    let mut matcher = COMPILER.compile(&OutputFormat::JsonObject).unwrap();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (position, &id) in ids.iter().enumerate() {
        matcher.mask(&mut before).unwrap();
        let wrong = (0..).find(|&id| !is_allowed(&before, id)).unwrap();
        assert_eq!(matcher.accept(wrong), Err(MatchError::NotAllowed { token: wrong, position }));
        assert_eq!(matcher.count_allowed(&[wrong]), 0);
        assert_eq!(matcher.count_allowed(&ids[position..]), ids.len() - position);
        matcher.accept(id).unwrap();
        matcher.rollback(1).unwrap();
        matcher.mask(&mut after).unwrap();
        assert_eq!(before, after, "after {position} tokens");
        matcher.accept(id).unwrap();
    }
    assert!(matcher.is_complete());
    let end = TOKENIZER.eos().unwrap();
    assert_eq!(matcher.count_allowed(&[end, end]), 1);
    matcher.accept(end).unwrap();
    assert_eq!(matcher.accept(end), Err(MatchError::NotAllowed { token: end, position: ids.len() + 1 }));
    let too_far = MatchError::RollbackTooFar { tokens: ids.len() + 2, position: ids.len() + 1 };
    assert_eq!(matcher.rollback(ids.len() + 2), Err(too_far));
    matcher.rollback(ids.len() + 1).unwrap();
    assert!(!matcher.is_complete());
    assert_eq!(follow(&mut matcher, text), Ok(()));
    assert_eq!(matcher.accept(u32::MAX), Err(MatchError::NotAllowed { token: u32::MAX, position: ids.len() }));
}

#[test]
fn when_nothing_can_follow_only_the_end_is_allowed() {
    let mut matcher = COMPILER.compile(&OutputFormat::Regex("yes".into())).unwrap();
    assert_eq!(follow(&mut matcher, "yes"), Ok(()));
    assert!(matcher.is_complete());
    let mut mask = Vec::new();
    matcher.mask(&mut mask).unwrap();
    assert_eq!(allowed_ids(&mask), TOKENIZER.end_of_generation());
    assert!(matcher.forced().is_empty());
}

#[test]
fn forced_text_is_cut_as_the_tokenizer_would() {
    let text = "The quick brown fox jumps over the lazy dog. <|im_end|> 日本語!";
    let mut matcher = COMPILER.compile(&OutputFormat::Regex(regex_escape(text))).unwrap();
    let forced = matcher.forced();
    let canonical = TOKENIZER.encode(text, SpecialTokens::AsText);
    assert!(forced.len() > 10 && canonical.starts_with(&forced), "{forced:?} {canonical:?}");
    assert_eq!(matcher.count_allowed(&forced), forced.len());
    let mut mask = Vec::new();
    matcher.mask(&mut mask).unwrap();
    assert_eq!(allowed_ids(&mask), forced[..1]);
    // Also where far more is forced than is cut at once.
    let long: String = (0..20_000).map(|index| format!("{index} ")).collect();
    let mut matcher = COMPILER.compile(&OutputFormat::strict_schema(json!({"const": long}))).unwrap();
    let expected = TOKENIZER.encode(&json!(long).to_string(), SpecialTokens::AsText);
    let mut taken = Vec::new();
    while taken.len() < 3_000 {
        matcher.mask(&mut mask).unwrap();
        let allowed = allowed_ids(&mask);
        assert!(allowed.contains(&expected[taken.len()]), "after {} tokens", taken.len());
        matcher.accept(expected[taken.len()]).unwrap();
        taken.push(expected[taken.len()]);
    }
}

/// This vocabulary has no token for U+0004 (see `smollm2.rs`).
#[test]
fn what_the_vocabulary_cannot_write_is_not_passed_over() {
    let mut matcher = COMPILER.compile(&OutputFormat::Regex("a\u{4}bd*|c".into())).unwrap();
    assert_eq!(matcher.accept(TOKENIZER.token_id("a").unwrap()), Ok(()));
    assert!(matcher.forced().is_empty());
    assert_eq!(matcher.mask(&mut Vec::new()), Err(MatchError::DeadEnd { position: 1 }));
    assert!(refusal(OutputFormat::Regex("\u{4}b".into())).contains("vocabulary cannot write"));
}

fn regex_escape(text: &str) -> String {
    regex_syntax::escape(text)
}

/// Schemas as people and libraries write them.
fn schemas() -> Vec<Value> {
    vec![
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Person", "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
                "height": {"type": "number", "minimum": 0.5, "maximum": 2.75},
                "email": {"type": "string", "format": "email"},
                "tags": {"type": "array", "items": {"enum": ["a", "b\"c", "é", 3, null]}, "minItems": 1, "maxItems": 3},
                "address": {"$ref": "#/$defs/address"}
            },
            "required": ["name", "age", "address"], "additionalProperties": false,
            "$defs": {"address": {
                "type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "city": {"type": "string"}},
                "required": ["zip"], "additionalProperties": {"type": "boolean"}
            }}
        }),
        json!({"$ref": "#/$defs/node", "$defs": {"node": {
            "type": "object", "properties": {
                "value": {"type": ["integer", "null"]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
            }, "required": ["value"], "additionalProperties": false
        }}}),
        json!({"anyOf": [
            {"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0, "maximum": 100}},
             "required": ["kind", "radius"], "additionalProperties": false},
            {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "integer", "multipleOf": 5, "minimum": 5, "maximum": 50}},
             "required": ["kind", "side"], "additionalProperties": false}
        ]}),
        json!({"oneOf": [
            {"type": "object", "properties": {"type": {"const": "a"}}, "required": ["type"]},
            {"type": "object", "properties": {"type": {"const": "b"}, "n": {"type": "integer"}}, "required": ["type", "n"]},
            {"type": "string", "maxLength": 3}
        ]}),
        json!({"type": "array", "prefixItems": [{"type": "string", "pattern": "^(foo|bar)+$"}, {"type": "boolean"}],
               "items": {"type": "number", "minimum": -1, "maximum": 1}, "minItems": 2, "maxItems": 4}),
        json!({"allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 7}, "b/~c": {"$ref": "#/properties/x~1y"}}, "required": ["b/~c"]}
        ], "properties": {"x/y": {"type": "string", "format": "date"}}}),
        json!({"type": "object", "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "string", "maxLength": 4}},
               "additionalProperties": false, "minProperties": 1}),
        json!({"type": "object", "properties": {"\\u0061": {"const": 1}, "a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "additionalProperties": {"$ref": "#"}}),
        json!({"definitions": {"old": {"type": "integer", "maximum": 9}}, "$schema": "http://json-schema.org/draft-07/schema#",
               "type": "array", "items": [{"$ref": "#/definitions/old"}, {"type": "null"}], "additionalItems": false}),
        json!({"$defs": {"p": {"$anchor": "point", "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
               "type": "array", "items": {"$ref": "#point"}}),
    ]
}

#[test]
fn random_answers_parse_and_validate() {
    let mut finished = 0;
    for (seed, schema) in schemas().into_iter().enumerate() {
        let output_format = OutputFormat::strict_schema(schema.clone());
        let validator = jsonschema::validator_for(&schema).unwrap();
        let mut dice = Dice::new(seed as u64 + 100);
        for _ in 0..25 {
            let mut matcher = COMPILER.compile(&output_format).unwrap_or_else(|error| panic!("{error}\n{schema}"));
            let Some(text) = random_answer(&mut matcher, &mut dice, 400) else { continue };
            let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(validator.is_valid(&value), "{text} is invalid by {schema}");
            finished += 1;
        }
    }
    println!("{finished} of {} answers came to an end and validated", schemas().len() * 25);
    assert!(finished > schemas().len() * 20, "{finished}");
}

/// Vocabularies of other kinds (SentencePiece, other byte-level ones, larger ones), where the environment names llama.cpp's
/// folder with them.
#[test]
fn other_vocabularies_write_valid_answers_too() {
    let Some(folder) = support::tokenizer_vectors() else { return };
    let schema = schemas().swap_remove(0);
    let validator = jsonschema::validator_for(&schema).unwrap();
    for name in ["llama-spm", "llama-bpe", "qwen2", "phi-3", "gpt-2", "gemma-4"] {
        let tokenizer = Arc::new(support::load_tokenizer(&folder.join(format!("ggml-vocab-{name}.gguf"))));
        let compiler = GrammarCompiler::new(&tokenizer).unwrap();
        let mut finished = 0;
        for seed in 0..5 {
            let mut matcher = compiler.compile(&OutputFormat::strict_schema(schema.clone())).unwrap();
            let answer = random_answer_of(&tokenizer, &mut matcher, &mut Dice::new(seed), 400);
            let Some(text) = answer else { continue };
            let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
            assert!(validator.is_valid(&value), "{name}: {text}");
            finished += 1;
        }
        assert!(finished > 0, "{name}: no answer came to an end");
    }
}

#[test]
fn what_a_schema_cannot_enforce_is_named_with_its_place() {
    let at = |schema: Value| refusal(OutputFormat::strict_schema(schema));
    for (schema, expected) in [
        (
            json!({"properties": {"a": {"not": {"multipleOf": 2}}}}),
            "the keyword \"not\" at #/properties/a is not supported",
        ),
        (json!({"items": {"uniqueItems": true}}), "the keyword \"uniqueItems\" at #/items is not supported"),
        (
            json!({"anyOf": [{}, {"if": {"multipleOf": 2}, "then": {"minimum": 3}}]}),
            "the keyword \"if\" at #/anyOf/1 is not supported",
        ),
        (
            json!({"$ref": "other.json"}),
            "the keyword \"$ref\" at # is \"other.json\", which refers to another document",
        ),
        (json!({"$ref": "https://example.com/x"}), "refers to another document"),
        (json!({"$ref": "#/$defs/x"}), "which does not exist in the schema"),
        (
            json!({"$defs": {"x": {"uniqueItems": true}}, "$ref": "#/$defs/x"}),
            "the keyword \"uniqueItems\" at #/$defs/x",
        ),
        (json!({"pattern": "(?=a)b"}), "the keyword \"pattern\" at # cannot be enforced"),
        (json!({"pattern": "a(b"}), "unclosed group"),
        (json!({"pattern": "a\\u0001"}), "the keyword \"pattern\" at # cannot be enforced"),
        (json!({"type": "text"}), "the keyword \"type\" at # must be one of"),
        (json!({"required": "a"}), "the keyword \"required\" at # must be an array of strings"),
        (json!({"minLength": -1}), "the keyword \"minLength\" at #"),
        (json!({"minimum": "3"}), "the keyword \"minimum\" at # must be a number"),
        (json!({"const": 9007199254740993u64}), "a number of 2^53 or beyond"),
        (json!({"enum": ["a\u{1}b"]}), "the keyword \"enum\" at # has a control character"),
        (json!({"multipleOf": 0}), "must be greater than 0"),
        (json!({"minProperties": 2.0}), "the keyword \"minProperties\" at # cannot be enforced"),
        (json!({"$schema": 4}), "the keyword \"$schema\" at # must be a string"),
        (json!({"items": 3}), "the schema at #/items must be an object or a boolean"),
        (json!({"oneOf": [{"multipleOf": 2}, {"minimum": 2}]}), "\"oneOf\" at # has options that may overlap"),
        (json!({"type": "object", "properties": {"a": false}, "required": ["a"]}), "Unsatisfiable"),
        (json!({"$ref": "#"}), "nothing satisfies it"),
        (json!(false), "nothing satisfies it"),
        (json!([1]), "must be an object or a boolean"),
    ] {
        let message = at(schema.clone());
        assert!(message.contains(expected), "{schema}: {message}");
    }
}

#[test]
fn relaxed_schemas_are_enforced_as_far_as_possible_and_tell_the_rest() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-04/schema#", "id": "http://example.com/a", "x-order": 1, "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 3, "exclusiveMinimum": true},
            "list": {"type": "array", "items": [{"type": "string"}], "additionalItems": false, "uniqueItems": true},
            "unique": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
            "few": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": true},
            "other": {"$ref": "http://example.com/b#/definitions/c"}
        },
        "required": ["n"], "dependencies": {"list": ["unique"]}, "additionalProperties": false
    });
    let output_format = OutputFormat::relaxed_schema(schema);
    for _ in 0..2 {
        let compiled = COMPILER.compile_for("a tenant", &output_format).unwrap();
        let places = compiled.not_enforced.constraints.iter();
        let places: Vec<_> = places.map(|place| (place.keyword.as_str(), place.pointer.as_str())).collect();
        assert_eq!(places, [("uniqueItems", "#/properties/unique"), ("$ref", "#/properties/other")]);
        assert_eq!(compiled.not_enforced.annotations[0].keyword, "x-order");
    }
    check(
        &output_format,
        &[
            r#"{"n": 4}"#,
            r#"{"n": 4, "unique": ["a", "a"], "other": [1]}"#,
            r#"{"n": 4, "list": ["x"], "unique": []}"#,
            r#"{"n": 4, "few": ["b", "a"]}"#,
        ],
        &[
            r#"{"n": 3}"#,
            r#"{"n": 4, "list": ["x"]}"#,
            r#"{"n": 4, "list": ["x", 1], "unique": []}"#,
            r#"{"n": 4, "x": 1}"#,
            r#"{"n": 4, "few": ["a", "a"]}"#,
        ],
    );
}

#[test]
fn conditions_on_one_property_are_enforced_together() {
    let case = |kind: &str, name: &str| json!({"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": {"required": [name]}});
    let cases: Vec<Value> = (0..20).map(|number| case(&format!("kind {number}"), &format!("name {number}"))).collect();
    let output_format = OutputFormat::strict_schema(json!({
        "type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"], "allOf": cases
    }));
    check(
        &output_format,
        &[r#"{"kind": "kind 3", "name 3": 1}"#, r#"{"kind": "kind"}"#, r#"{"kind": "kind 30"}"#],
        &[r#"{"kind": "kind 3"}"#, r#"{"kind": "kind 3", "name 4": 1}"#, r#"{"kind": 3}"#],
    );
}

/// Twenty definitions, each of which refers to the next one four times, as generated schemas do.
#[test]
fn references_may_be_many() {
    let definitions: Map<String, Value> = (0..20)
        .map(|level| {
            let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
            let definition = json!({
                "type": "object",
                "properties": {
                    "a": next, "b": {"anyOf": [next, {"type": "null"}]}, "c": {"allOf": [next], "description": "d"},
                    "d": {"type": "array", "items": next}
                },
                "additionalProperties": false
            });
            (level.to_string(), definition)
        })
        .chain([("20".to_owned(), json!({"type": "integer"}))])
        .collect();
    let output_format = OutputFormat::strict_schema(json!({"$ref": "#/$defs/17", "$defs": definitions}));
    check(&output_format, &[r#"{"a":{"b":{"c":1,"d":[2]}},"b":null}"#], &[r#"{"a":{"b":{"c":"x"}}}"#]);
    let output_format = OutputFormat::strict_schema(json!({"$ref": "#/$defs/0", "$defs": definitions}));
    check(&output_format, &["{}"], &["[]"]);
}

#[test]
fn annotations_are_no_obstacle() {
    let annotated = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema#", "$id": "https://example.com/a", "$comment": "c",
        "title": "t", "description": "d", "default": {"not": 1}, "examples": [{"if": 1}], "deprecated": true,
        "readOnly": true, "writeOnly": false, "type": "array", "uniqueItems": false,
        "items": {"$ref": "https://example.com/a#/$defs/n"}, "$defs": {"n": {"type": "integer"}, "unused": {"not": {}}}
    });
    check(&OutputFormat::strict_schema(annotated), &["[1,2]"], &["[\"a\"]"]);
}

#[test]
fn compiled_grammars_are_kept_up_to_a_limit() {
    let compiler = GrammarCompiler::new(&TOKENIZER).unwrap();
    for round in 0..2 {
        for number in 0..70 {
            compiler.compile(&OutputFormat::Regex(format!("a{{{number}}}b"))).unwrap();
        }
        assert_eq!(compiler.cached(), 64, "round {round}");
    }
    assert!(compiler.compile(&OutputFormat::Regex("(".into())).is_err());
    assert_eq!(compiler.cached(), 64);
}

#[test]
fn answers_do_not_disturb_each_other() {
    let output_format = OutputFormat::strict_schema(schemas().swap_remove(0));
    let alone = random_answer(&mut COMPILER.compile(&output_format).unwrap(), &mut Dice::new(5), 400);
    let together: Vec<_> = std::thread::scope(|scope| {
        let answer = || random_answer(&mut COMPILER.compile(&output_format).unwrap(), &mut Dice::new(5), 400);
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(answer)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(together.iter().all(|answer| *answer == alone), "{alone:?} {together:?}");
}

#[test]
fn matchers_can_be_sent_and_compilers_shared() {
    fn is_send<T: Send + std::fmt::Debug>() {}
    fn is_shared<T: Send + Sync + std::fmt::Debug>() {}
    is_send::<Matcher>();
    is_shared::<GrammarCompiler>();
    is_shared::<GrammarError>();
}
