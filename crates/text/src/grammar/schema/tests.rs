//! How schemas are written anew: what is enforced, what is relaxed, and what is an error.

use serde_json::{Map, Value, json};

use super::*;

fn strict(schema: &Value) -> Result<Prepared, GrammarError> {
    prepared(schema, Strictness::Strict, Effort::FULL)
}

fn relaxed(schema: &Value) -> Prepared {
    prepared(schema, Strictness::Relaxed, Effort::FULL).unwrap_or_else(|error| panic!("{error}: {schema}"))
}

fn places(prepared: &Prepared) -> Vec<String> {
    let places = prepared.not_enforced.constraints.iter();
    places.map(|place| format!("{} {}", place.keyword, place.pointer)).collect()
}

/// Where a strict schema is refused, a relaxed one names the places.
#[test]
fn what_cannot_be_enforced_is_an_error_or_is_named() {
    for (schema, expected) in [
        (json!({"items": {"uniqueItems": true}}), "uniqueItems #/items"),
        (json!({"properties": {"a/b": {"not": {"multipleOf": 2}}}}), "not #/properties/a~1b"),
        (json!({"if": {"multipleOf": 2}, "then": {"minimum": 3}}), "if #"),
        (json!({"$ref": "https://example.com/other.json"}), "$ref #"),
        (json!({"$ref": "#/$defs/none"}), "$ref #"),
        (json!({"pattern": "(?=a)b"}), "pattern #"),
        (json!({"patternProperties": {"(?!x)": {"type": "null"}}}), "patternProperties #"),
        (json!({"patternProperties": {"^a": {"type": "null"}, "b$": {"type": "string"}}}), "patternProperties #"),
        (json!({"const": 9_007_199_254_740_993_u64}), "const #"),
        (json!({"maximum": 9_223_372_036_854_775_807_u64}), "maximum #"),
        (json!({"enum": ["a\u{1}"]}), "enum #"),
        (json!({"minProperties": 3}), "minProperties #"),
        (json!({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}), "oneOf #"),
        (json!({"propertyNames": {"format": "date"}}), "propertyNames #"),
        (json!({"contains": {"uniqueItems": true}}), "contains #"),
        (json!({"properties": {}, "unevaluatedProperties": false, "$ref": "#"}), "unevaluatedProperties #"),
    ] {
        let error = strict(&schema).map(drop).expect_err(&schema.to_string());
        assert!(matches!(error, GrammarError::NotEnforceable { .. }), "{schema}: {error}");
        let places = places(&relaxed(&schema));
        assert!(places.iter().any(|place| place == expected), "{schema}: {places:?}");
    }
}

#[test]
fn what_makes_no_sense_is_an_error_in_any_case() {
    let mut wrong = Vec::new();
    for keyword in
        ["minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "minProperties"]
    {
        wrong.extend([json!("3"), json!(null), json!([]), json!({})].map(|value| json!({ keyword: value })));
    }
    for keyword in ["allOf", "anyOf", "oneOf", "enum", "required", "prefixItems"] {
        wrong.extend([json!("a"), json!(3), json!({}), json!(true)].map(|value| json!({ keyword: value })));
    }
    for keyword in ["properties", "patternProperties", "dependentRequired", "dependentSchemas", "dependencies"] {
        wrong.extend([json!("a"), json!(3), json!([1]), json!({ "a": 3 })].map(|value| json!({ keyword: value })));
    }
    for keyword in ["items", "additionalProperties", "not", "if", "propertyNames", "contains", "unevaluatedItems"] {
        wrong.extend(
            [json!("a"), json!(3), json!(null)].map(|value| json!({ keyword: value, "then": {"type": "null"} })),
        );
    }
    for keyword in ["$ref", "$dynamicRef", "pattern", "format", "$schema", "type", "uniqueItems"] {
        wrong.extend([json!(3), json!(null), json!({})].map(|value| json!({ keyword: value })));
    }
    wrong.extend([
        json!({"type": "text"}),
        json!({"type": []}),
        json!({"minLength": -1}),
        json!({"multipleOf": 0}),
        json!([1]),
    ]);
    for schema in wrong {
        for strictness in [Strictness::Strict, Strictness::Relaxed] {
            let error = prepared(&schema, strictness, Effort::FULL).map(drop);
            let is_told = matches!(error, Err(GrammarError::Keyword { .. } | GrammarError::Schema { .. }));
            assert!(is_told, "{schema}: {error:?}");
        }
    }
}

#[test]
fn unknown_keywords_and_formats_are_annotations() {
    let schema = json!({
        "x-order": 1, "nullable": true, "_format": "a", "type": "object",
        "properties": {"a": {"type": "string", "format": "color", "x-order": 2}, "b": {"format": "iri"}}
    });
    let prepared = strict(&schema).unwrap();
    assert!(prepared.not_enforced.is_valid_by_construction());
    let names: Vec<&str> = prepared.not_enforced.annotations.iter().map(|place| place.keyword.as_str()).collect();
    assert_eq!(names, ["x-order", "nullable", "_format", "format:color", "format:iri"]);
}

#[test]
fn references_of_old_drafts_stand_alone() {
    let schema = |draft: &str| {
        json!({
            "$schema": draft, "definitions": {"a": {"type": "string"}},
            "properties": {"p": {"$ref": "#/definitions/a", "maxLength": 3}}
        })
    };
    let property = |draft: &str| strict(&schema(draft)).unwrap().schema["properties"]["p"].clone();
    assert_eq!(property("http://json-schema.org/draft-07/schema#"), json!({"$ref": "#/$defs/d0"}));
    assert_eq!(property("https://json-schema.org/draft/2019-09/schema"), json!({"$ref": "#/$defs/d0", "maxLength": 3}));
}

#[test]
fn limits_of_draft_04_become_numbers() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true, "maximum": 5,
        "exclusiveMaximum": false
    });
    let written = strict(&schema).unwrap().schema;
    assert_eq!((&written["exclusiveMinimum"], &written["maximum"]), (&json!(1), &json!(5)));
    assert_eq!(written.get("exclusiveMaximum"), None);
}

#[test]
fn definitions_that_nothing_refers_to_are_left_out() {
    let definitions: Map<String, Value> =
        (0..1_000).map(|number| (number.to_string(), json!({"not": {"multipleOf": 2}}))).collect();
    let schema =
        json!({"type": "object", "definitions": definitions, "properties": {"a": {"$ref": "#/definitions/x"}}});
    let mut schema = schema;
    schema["definitions"]["x"] = json!({"type": "null"});
    let written = strict(&schema).unwrap().schema;
    assert_eq!(written["$defs"], json!({"d0": {"type": "null"}}));
}

#[test]
fn a_negated_negation_is_what_it_negates() {
    let written = strict(&json!({"not": {"not": {"multipleOf": 2}}})).unwrap().schema;
    assert_eq!(written["allOf"], json!([{"multipleOf": 2}]));
    // What a negation leaves out must not come back.
    assert!(strict(&json!({"not": {"not": {"type": "integer"}, "title": "x", "minimum": 3}})).is_err());
}

#[test]
fn relaxed_parts_are_never_negated() {
    let schema = json!({"not": {"properties": {"a": {"uniqueItems": true}}, "required": ["a"]}});
    let prepared = relaxed(&schema);
    assert_eq!(places(&prepared), ["not #"]);
    assert_eq!(prepared.schema.get("allOf"), None);
    let through_reference = json!({
        "properties": {"p": {"$ref": "#/$defs/u"}, "q": {"not": {"$ref": "#/$defs/u"}}},
        "$defs": {"u": {"type": "array", "uniqueItems": true}}
    });
    assert_eq!(places(&relaxed(&through_reference)), ["uniqueItems #/$defs/u", "not #/properties/q"]);
}

#[test]
fn patterns_that_are_left_out_shut_no_names_out() {
    let schema = json!({"patternProperties": {"(?!x)a": {"type": "null"}}, "additionalProperties": false});
    let prepared = relaxed(&schema);
    assert_eq!(prepared.schema.get("additionalProperties"), None);
    assert_eq!(places(&prepared), ["patternProperties #", "additionalProperties #"]);
}

#[test]
fn names_that_two_patterns_may_match_must_have_what_both_ask_for() {
    let schema = json!({"patternProperties": {"^a": {"minLength": 1}, "b$": {"type": "string"}}});
    let narrowed = strict(&schema).unwrap();
    assert!(narrowed.is_narrowed);
    let patterns = narrowed.schema["patternProperties"].as_object().unwrap();
    let (_, both) = patterns.iter().next().unwrap();
    assert_eq!((patterns.len(), both), (1, &json!({"allOf": [{"minLength": 1}, {"type": "string"}]})));
    assert!(strict(&json!({"not": schema})).is_err());
    assert_eq!(places(&relaxed(&schema)), ["patternProperties #"]);
}

#[test]
fn dynamic_references_lead_to_the_outermost_anchor_on_the_way() {
    let list = json!({
        "$id": "list", "items": {"$dynamicRef": "#item"}, "$defs": {"any": {"$dynamicAnchor": "item"}}
    });
    let of = |kind: &str| {
        let item = json!({"$dynamicAnchor": "item", "type": kind});
        json!({"$id": kind, "$ref": "list", "$defs": {"item": item}})
    };
    let schema = json!({
        "$id": "http://example.com/root",
        "properties": {"s": {"$ref": "string"}, "n": {"$ref": "number"}, "l": {"$ref": "list"}},
        "$defs": {"list": list, "s": of("string"), "n": of("number")}
    });
    let written = strict(&schema).unwrap().schema;
    let referred = |schema: &Value| {
        let path = schema["$ref"].as_str().unwrap().strip_prefix('#').unwrap();
        written.pointer(path).unwrap().clone()
    };
    let item = |name: &str| {
        let mut list = referred(&written["properties"][name]);
        while list.get("items").is_none() {
            list = referred(&list);
        }
        referred(&list["items"])
    };
    assert_eq!(item("s"), json!({"type": "string"}));
    assert_eq!(item("n"), json!({"type": "number"}));
    assert_eq!(item("l"), json!({}));
}

#[test]
fn less_effort_accepts_more_until_the_type_is_left() {
    let schema = json!({
        "type": "object", "properties": {"a": {"properties": {"b": {"items": {"not": {"const": 1}}}}}},
        "minProperties": 1, "allOf": [{"required": ["a"]}]
    });
    let mut effort = Some(Effort::FULL);
    let mut last = Value::Null;
    while let Some(some) = effort {
        last = prepared(&schema, Strictness::Relaxed, some).unwrap().schema;
        effort = some.less();
    }
    last.as_object_mut().unwrap().shift_remove("x-guidance");
    assert_eq!(last["type"], "object");
    assert_eq!(last["properties"], json!({"a": {}}));
}

#[test]
fn cycles_and_long_chains_of_references_end() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}], "type": "object"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"not": {"$ref": "#"}}),
        json!({"if": {"$ref": "#"}, "then": {"$ref": "#"}, "else": {"$ref": "#"}}),
        json!({"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"unevaluatedProperties": false, "anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"$dynamicRef": "#a", "$dynamicAnchor": "a"}),
        json!({"propertyNames": {"$ref": "#"}}),
        json!({"contains": {"$ref": "#"}}),
    ] {
        drop(strict(&schema));
        relaxed(&schema);
    }
    let chain: Map<String, Value> = (0..2_000)
        .map(|number| (number.to_string(), json!({"items": {"$ref": format!("#/$defs/{}", number + 1)}})))
        .chain([("2000".to_owned(), json!({}))])
        .collect();
    let schema = json!({"$ref": "#/$defs/0", "$defs": chain});
    // Schemas are compiled on threads with much stack.
    let check = move || {
        assert!(matches!(strict(&schema), Err(GrammarError::TooDeep { .. })));
        assert!(!relaxed(&schema).not_enforced.is_valid_by_construction());
    };
    std::thread::Builder::new().stack_size(64 << 20).spawn(check).unwrap().join().unwrap();
}

#[test]
fn ten_thousand_alternatives_and_conditions_are_bounded() {
    let options: Vec<Value> = (0..10_000).map(|number| json!({"required": [number.to_string()]})).collect();
    let conditions: Vec<Value> = (0..200)
        .map(|number| json!({"if": {"properties": {"k": {"const": number}}}, "then": {"required": [number.to_string()]}}))
        .collect();
    let dependencies: Map<String, Value> =
        (0..200).map(|number| (number.to_string(), json!([format!("d{number}")]))).collect();
    for schema in [
        json!({"oneOf": options}),
        json!({"anyOf": options, "type": "object"}),
        json!({"allOf": conditions, "type": "object"}),
        json!({"dependentRequired": dependencies}),
        json!({"not": {"allOf": options}}),
        json!({"type": "array", "contains": {"const": 1}, "minContains": 4_000_000_000_u32}),
        json!({"type": "object", "anyOf": options, "unevaluatedProperties": false}),
    ] {
        relaxed(&schema);
        drop(strict(&schema));
    }
}
