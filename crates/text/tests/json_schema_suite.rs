//! The JSON Schema Test Suite (draft 2020-12): what is valid is accepted, what is not is refused, and what cannot be
//! enforced is named.
//!
//! Comes with the source package of Python's jsonschema and is fetched the first time.

mod grammar_support;
mod support;

use std::collections::{BTreeMap, BTreeSet};

use grammar_support::{COMPILER, Dice, follow, random_answer};
use ruvllm_text::{GrammarError, OutputFormat};
use serde_json::Value;

/// Valid instances that we do not accept: we write object properties in one order only, that of the schema.
const OTHER_ORDER: [&str; 3] = [
    "allOf: allOf: allOf",
    "allOf: allOf with base schema: valid",
    "const: const with object: same object with different property order is valid",
];

/// Valid instances that we do not accept: we write whole numbers without a fraction.
const WITH_FRACTION: [&str; 8] = [
    "const: const with 0 does not match other zero-like types: float zero is valid",
    "const: const with 1 does not match true: float one is valid",
    "const: const with -2.0 matches integer and float types: float -2.0 is valid",
    "enum: enum with 0 does not match false: float zero is valid",
    "enum: enum with [0] does not match [false]: [0.0] is valid",
    "enum: enum with 1 does not match true: float one is valid",
    "enum: enum with [1] does not match [true]: [1.0] is valid",
    "type: integer type matches integers: a float with zero fractional part is an integer",
];

/// To the suite, formats are annotations; to us, they are promises.
const ANNOTATION_ONLY: &str = "is only an annotation by default";

/// What messages of llguidance speak of, where it is the one that refuses.
const NAMED_BY_THE_COMPILER: [&str; 4] = ["\"oneOf\"", "patternProperty", "multipleOf", "Unsatisfiable"];

struct Group {
    /// `file: description`.
    name: String,
    schema: Value,
    tests: Vec<Value>,
}

fn suite() -> Vec<Group> {
    let folder = grammar_support::fetched("json-schema-suite", "json-schema-suite-4.25.1");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 40, "{} has only {} files", folder.display(), files.len());
    let groups = files.iter().flat_map(|file| {
        let groups: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
        groups.into_iter().map(move |group| Group {
            name: format!("{stem}: {}", group["description"].as_str().unwrap()),
            schema: group["schema"].clone(),
            tests: group["tests"].as_array().unwrap().clone(),
        })
    });
    groups.collect()
}

#[test]
fn verdicts_are_those_of_the_suite() {
    let known: BTreeSet<String> = OTHER_ORDER.iter().chain(&WITH_FRACTION).map(|&name| name.to_owned()).collect();
    let (mut agree, mut annotations) = (0, 0);
    let mut too_strict = BTreeSet::new();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    for group in suite() {
        let output_format = OutputFormat::JsonSchema(group.schema.clone());
        if let Err(error) = COMPILER.compile(&output_format) {
            *refused.entry(name_in(&error, &group.name)).or_default() += group.tests.len();
            continue;
        }
        for test in &group.tests {
            let name = format!("{}: {}", group.name, test["description"].as_str().unwrap());
            let is_accepted = follow(&mut COMPILER.compile(&output_format).unwrap(), &test["data"].to_string()).is_ok();
            match (is_accepted, test["valid"].as_bool().unwrap()) {
                (true, true) | (false, false) => agree += 1,
                (true, false) => panic!("{name}: accepts {}, which is invalid by {}", test["data"], group.schema),
                (false, true) if name.ends_with(ANNOTATION_ONLY) => annotations += 1,
                (false, true) => drop(too_strict.insert(name)),
            }
        }
    }
    println!("{agree} verdicts agree, {} known differences, {annotations} formats enforced", too_strict.len());
    println!("not enforced, with an error that names it: {refused:?}");
    assert_eq!(too_strict, known);
    assert!(agree >= 550, "{agree}");
}

/// The keyword that an error names.
fn name_in(error: &GrammarError, group: &str) -> String {
    match error {
        GrammarError::Keyword { keyword, pointer, .. } | GrammarError::UnknownKeyword { keyword, pointer } => {
            assert!(pointer.starts_with('#'), "{group}: {error}");
            keyword.clone()
        }
        GrammarError::Schema { .. } => "(false)".to_owned(),
        other => {
            let text = other.to_string();
            let named = NAMED_BY_THE_COMPILER.iter().find(|name| text.contains(*name));
            (*named.unwrap_or_else(|| panic!("{group}: {error} names nothing"))).to_owned()
        }
    }
}

#[test]
fn whatever_is_generated_validates() {
    let mut generated = 0;
    for (seed, group) in suite().into_iter().enumerate() {
        let output_format = OutputFormat::JsonSchema(group.schema.clone());
        if COMPILER.compile(&output_format).is_err() {
            continue;
        }
        let validator = jsonschema::validator_for(&group.schema).unwrap();
        let mut dice = Dice::new(seed as u64);
        for _ in 0..8 {
            let mut matcher = COMPILER.compile(&output_format).unwrap();
            let Some(text) = random_answer(&mut matcher, &mut dice, 200) else { continue };
            let Ok(value) = serde_json::from_str(&text) else {
                // A float that is too large is JSON, but not for this parser.
                serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
                continue;
            };
            assert!(validator.is_valid(&value), "{}: {text} is invalid by {}", group.name, group.schema);
            generated += 1;
        }
    }
    println!("{generated} random answers validated");
    assert!(generated > 1000, "{generated}");
}
