//! llama.cpp's published example grammars: each compiles, accepts what it is for and refuses what it is not for.
//!
//! Come with the source package of llama-cpp-python and are fetched the first time.

use crate::grammar_support;
use crate::grammar_support::{COMPILER, Dice, follow, random_answer};
use ruvllm_text::OutputFormat;

/// File, answers that it accepts, answers that it refuses.
const CASES: [(&str, &[&str], &[&str]); 8] = [
    ("arithmetic", &["1 +2*(3-x )= 7\n", "a=b\n1=1\n"], &["1 +\n", "1=1"]),
    (
        "c",
        &["int main(int argc){return 0;}", "float f(){int x = 1;while(x<10){x = x+1;}return x;}"],
        &["int main(", "class X {}"],
    ),
    ("chess", &["1. e4 e5\n2. Nf3 Nc6\n"], &["1. z9 e5\n"]),
    ("english", &["Hello, this is English: 1, 2!"], &["日本"]),
    ("japanese", &["日本語、テスト。"], &["Hello"]),
    (
        "json",
        &[r#"{"a": [1, -2.5e3, true, null, "x\u00e9"], "b": {}}"#, "{\n  \"a\": 1}"],
        &["[1]", "{a: 1}", "{\"a\": 01}"],
    ),
    ("json_arr", &["[\n\"a\",\n1,\n{}]"], &["{}"]),
    ("list", &["- one\n- two\n"], &["one\n", "- one"]),
];

fn source(name: &str) -> String {
    let folder = grammar_support::fetched("grammars", "llama.cpp-grammars-0.3.36");
    std::fs::read_to_string(folder.join(format!("{name}.gbnf"))).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn published_grammars_accept_and_refuse_as_they_say() {
    for (name, accepted, refused) in CASES {
        let output_format = OutputFormat::Gbnf(source(name));
        let compile = || COMPILER.compile(&output_format).unwrap_or_else(|error| panic!("{name}: {error}"));
        for text in accepted {
            assert_eq!(follow(&mut compile(), text), Ok(()), "{name}: {text}");
        }
        for text in refused {
            assert!(follow(&mut compile(), text).is_err(), "{name}: {text}");
        }
    }
}

#[test]
fn random_answers_by_the_json_grammar_are_json() {
    let output_format = OutputFormat::Gbnf(source("json"));
    let mut dice = Dice::new(11);
    let mut finished = 0;
    for _ in 0..100 {
        let Some(text) = random_answer(&mut COMPILER.compile(&output_format).unwrap(), &mut dice, 300) else {
            continue;
        };
        serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        finished += 1;
    }
    assert!(finished > 80, "{finished}");
}
