//! How long masks take over the default model's vocabulary, and how long output formats take to compile.
//!
//!     cargo bench -p ruvllm-text --bench grammar [-- --json]
//!
//! Valid answers are replayed token by token; at each token the mask is computed and the token accepted. Each time
//! counts as it was, with whatever other programs did to the machine meanwhile.

#[allow(dead_code)]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_text::{GrammarCompiler, OutputFormat, SpecialTokens, Strictness, Tokenizer, Tool, ToolChoice, ToolFormat};
use serde_json::{Value, json};

const ROUNDS: usize = 30;

struct Case {
    name: &'static str,
    output_format: OutputFormat,
    answer: String,
}

struct Figures {
    name: &'static str,
    compile: Duration,
    cached: Duration,
    tokens: usize,
    /// One per token of the answer and round, ascending.
    masks: Vec<Duration>,
    /// On average.
    accept: Duration,
}

fn main() {
    let tokenizer = Arc::new(support::load_tokenizer(&support::default_model()));
    let started = Instant::now();
    let compiler = GrammarCompiler::new(&tokenizer).expect("a vocabulary of the usual size");
    compiler.compile(&OutputFormat::Regex("a".into())).expect("a letter");
    let first = started.elapsed();
    let mut figures: Vec<Figures> = cases().iter().map(|case| measure(&compiler, &tokenizer, case)).collect();
    figures.push(together(&figures));
    if std::env::args().any(|argument| argument == "--json") {
        println!("{}", as_json(first, tokenizer.vocab_size(), &figures));
    } else {
        print_table(first, tokenizer.vocab_size(), &figures);
    }
}

fn measure(compiler: &GrammarCompiler, tokenizer: &Tokenizer, case: &Case) -> Figures {
    let ids = tokenizer.encode(&case.answer, SpecialTokens::AsText);
    let started = Instant::now();
    compiler.compile(&case.output_format).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let compile = started.elapsed();
    let (mut masks, mut cached, mut accepts) = (Vec::new(), Vec::new(), Duration::ZERO);
    let mut allowed = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let mut matcher = compiler.compile(&case.output_format).expect("it compiled before");
        cached.push(started.elapsed());
        for &id in &ids {
            let started = Instant::now();
            matcher.mask(&mut allowed).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            masks.push(started.elapsed());
            let started = Instant::now();
            matcher.accept(id).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            accepts += started.elapsed();
        }
        assert!(matcher.may_end().expect("it works"), "{}: the answer is not complete", case.name);
    }
    masks.sort_unstable();
    cached.sort_unstable();
    let (cached, accept) = (cached[cached.len() / 2], accepts / masks.len() as u32);
    Figures { name: case.name, tokens: ids.len(), compile, cached, masks, accept }
}

fn together(figures: &[Figures]) -> Figures {
    let of_all = |field: fn(&Figures) -> Duration| figures.iter().map(field).sum::<Duration>() / figures.len() as u32;
    let mut masks: Vec<Duration> = figures.iter().flat_map(|case| case.masks.iter().copied()).collect();
    masks.sort_unstable();
    Figures {
        name: "together",
        tokens: figures.iter().map(|case| case.tokens).sum(),
        compile: of_all(|case| case.compile),
        cached: of_all(|case| case.cached),
        accept: of_all(|case| case.accept),
        masks,
    }
}

impl Figures {
    fn quantile(&self, quantile: f64) -> Duration {
        self.masks[((self.masks.len() - 1) as f64 * quantile).round() as usize]
    }
}

fn print_table(first: Duration, vocab_size: usize, figures: &[Figures]) {
    println!("vocabulary of {vocab_size} tokens; built with the first output format in {:.1} ms", millis(first));
    println!(
        "{:<24} {:>7} {:>12} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "shape", "tokens", "compile ms", "cached µs", "median µs", "p99 µs", "max µs", "accept µs"
    );
    for case in figures {
        println!(
            "{:<24} {:>7} {:>12.2} {:>11.1} {:>11.1} {:>11.1} {:>11.1} {:>11.2}",
            case.name,
            case.tokens,
            millis(case.compile),
            micros(case.cached),
            micros(case.quantile(0.5)),
            micros(case.quantile(0.99)),
            micros(case.quantile(1.0)),
            micros(case.accept),
        );
    }
}

fn as_json(first: Duration, vocab_size: usize, figures: &[Figures]) -> Value {
    let output_formats = figures.iter().map(|case| {
        json!({
            "shape": case.name, "tokens": case.tokens, "compile_ms": millis(case.compile),
            "cached_us": micros(case.cached), "mask_median_us": micros(case.quantile(0.5)),
            "mask_p99_us": micros(case.quantile(0.99)), "mask_max_us": micros(case.quantile(1.0)),
            "accept_us": micros(case.accept),
        })
    });
    json!({"vocab_size": vocab_size, "first_ms": millis(first), "shapes": output_formats.collect::<Vec<_>>()})
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn cases() -> Vec<Case> {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 8},
            "address": {"$ref": "#/$defs/address"}
        },
        "required": ["name", "age", "email", "tags", "address"], "additionalProperties": false,
        "$defs": {"address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
                           "country": {"enum": ["Norway", "Sweden", "Finland", "Denmark"]}},
            "required": ["street", "zip", "country"], "additionalProperties": false
        }}
    });
    let person_answer = r#"{"name": "Ada Lovelace", "age": 36, "email": "ada@example.com", "tags": ["mathematics", "engines"], "address": {"street": "12 St James's Square", "zip": "01234", "country": "Norway"}}"#;
    let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {
        "type": "object",
        "properties": {"label": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["label"], "additionalProperties": false
    }}});
    let tree_answer = r#"{"label": "root", "children": [{"label": "left", "children": [{"label": "leaf one"}, {"label": "leaf two"}]}, {"label": "right"}]}"#;
    let events = json!({"type": "array", "items": {"anyOf": (0..20).map(|kind| json!({
        "type": "object", "properties": {"kind": {"const": format!("event_{kind}")}, format!("value_{kind}"): {"type": "number"}},
        "required": ["kind", format!("value_{kind}")], "additionalProperties": false
    })).collect::<Vec<_>>()}});
    let events_answer = r#"[{"kind": "event_3", "value_3": 1.25}, {"kind": "event_17", "value_17": -3e2}, {"kind": "event_0", "value_0": 0}]"#;
    let json_answer = r#"{"title": "On the sky", "paragraphs": ["The sky is blue because short waves are scattered more than long ones.", "At dusk, the way through the air is longer."], "score": 0.875, "final": true, "next": null}"#;
    let gbnf = r#"
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let arithmetic = "start: sum\nsum: product ((\"+\" | \"-\") product)*\nproduct: atom ((\"*\" | \"/\") atom)*\natom: NUMBER | NAME | \"(\" sum \")\"\nNUMBER: /[0-9]+(\\.[0-9]+)?/\nNAME: /[a-z_][a-z0-9_]*/\n%ignore \" \"\n";
    let tools = [
        Tool {
            name: "get_weather".into(),
            description: None,
            parameters: json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}}, "required": ["city"], "additionalProperties": false}),
            strictness: Strictness::Strict,
        },
        Tool { name: "search".into(), description: None, parameters: person.clone(), strictness: Strictness::Strict },
    ];
    let tools_format =
        |choice| ToolFormat::Hermes.output_format(&tools, &choice, true).expect("good tools").expect("a output format");
    let call =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Trondheim\", \"days\": 3}}\n</tool_call>";
    let prose = "Let me look that up for you: a < b, and the sky is usually blue. I shall ask the weather service about the next days.\n";
    let case = |name, output_format, answer: &str| Case { name, output_format, answer: answer.to_owned() };
    vec![
        case("json object", OutputFormat::JsonObject, json_answer),
        case("schema: person", OutputFormat::strict_schema(person), person_answer),
        case("schema: recursive", OutputFormat::strict_schema(tree), tree_answer),
        case("schema: 20 variants", OutputFormat::strict_schema(events), events_answer),
        case(
            "regex: date and e-mail",
            OutputFormat::Regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [a-z0-9._]+@[a-z0-9-]+(\.[a-z]{2,6})+".into()),
            "2024-02-29 ada.lovelace@example.co.uk",
        ),
        case("regex: any text", OutputFormat::Regex("(?s:.*)".into()), prose),
        case("gbnf: json", OutputFormat::Gbnf(gbnf.into()), json_answer),
        case("lark: arithmetic", OutputFormat::Lark(arithmetic.into()), "(alpha + 2.5) * beta_1 - 17 / (x - y) + 3"),
        case("tools: required", tools_format(ToolChoice::Required), call),
        case("tools: auto", tools_format(ToolChoice::Auto), &format!("{prose}{call}")),
    ]
}
