//! `ruvllm adapters train` with the real program: a tiny model learns, is interrupted and resumed; wrong input is refused by name.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::server::ruvllm;
use crate::support::safetensors_folder;
use serde_json::{Value, json};
use tempfile::TempDir;

fn run(home: &TempDir, arguments: &[&str]) -> Output {
    ruvllm(home).args(arguments).output().expect("the program runs")
}

fn printed(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn refused(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A home, a model of bytes, and a folder for data.
struct Setting {
    home: TempDir,
    model: TempDir,
    folder: TempDir,
}

impl Setting {
    fn new() -> Self {
        let folder = || tempfile::tempdir().expect("a folder");
        Self { home: folder(), model: safetensors_folder(&json!({})), folder: folder() }
    }

    fn model(&self) -> &str {
        text(self.model.path())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).expect("room for a file");
        path
    }

    /// Lines of each kind, all of which say the same.
    fn lines(&self) -> PathBuf {
        let line = |number: usize| match number % 3 {
            0 => json!({ "prompt": format!("Question {number}:"), "completion": " always the same" }),
            1 => json!({ "text": format!("Question {number}: always the same, again and again") }),
            _ => json!({ "messages": [{ "role": "user", "content": format!("Question {number}:") },
                                      { "role": "assistant", "content": "always the same" }] }),
        };
        let lines: Vec<String> = (0..12).map(|number| line(number).to_string()).collect();
        self.write("lines.jsonl", lines.join("\n"))
    }
}

#[test]
fn an_adapter_is_trained_shown_and_used() {
    let setting = Setting::new();
    let (home, data) = (&setting.home, setting.lines());
    let train =
        ["adapters", "train", setting.model(), "--data", text(&data), "--validation", "0.25", "--step-tokens", "96"];
    let more = ["--learning-rate", "0.01", "--epochs", "4", "--rank", "4"];
    let told = printed(home, &[&train[..], &more, &["--name", "same", "--json"]].concat());
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let losses: Vec<f64> =
        told["losses"].as_array().expect("a list").iter().filter_map(|one| one["validation_loss"].as_f64()).collect();
    let best = told["validation_loss"].as_f64().expect("a number");
    assert!(losses.len() >= 2 && best < 0.9 * losses[0], "{told}");
    assert_eq!((&told["adapter"], &told["items"]["validation"]), (&json!("same"), &json!(3)));
    let shown = printed(home, &["adapters", "show", "same"]);
    assert!(shown.contains("trained by") && shown.contains(told["data"].as_str().expect("a digest")), "{shown}");

    let ask = |more: &[&str]| {
        let ask = ["run", setting.model(), "Question 5:", "--temperature", "0", "-n", "8", "-c", "128"];
        run(home, &[&ask[..], more].concat()).stdout
    };
    assert_ne!(ask(&[]), ask(&["--adapter", "same"]), "it says something else");

    // The same run to a folder, on one thread, has the same weights.
    let folder = setting.folder.path().join("again");
    let table = printed(home, &[&train[..], &more, &["--output", text(&folder), "--threads", "1"]].concat());
    assert!(table.contains("VALIDATION LOSS") && table.contains("is ready"), "{table}");
    let digest = |name: &str| {
        let shown: Value = serde_json::from_str(&printed(home, &["adapters", "show", name, "--json"])).expect("JSON");
        shown["digest"].clone()
    };
    assert_eq!(digest("same"), digest(text(&folder)));
    assert!(refused(home, &[&train[..], &["--output", text(&folder)]].concat()).contains("exists"));
}

/// Pairs in every form: those of TRL's documentation, of ultrafeedback_binarized (two of them), of hh-rlhf, and our own.
fn pairs() -> Vec<Value> {
    let form = |number: usize| {
        let asked = format!("Question {number}:");
        let (user, answer) =
            (json!({ "role": "user", "content": asked }), |text| json!({ "role": "assistant", "content": text }));
        let (good, bad) = (answer("always the same"), answer("NEVER!"));
        match number % 7 {
            0 => json!({ "prompt": asked, "chosen": " always the same", "rejected": " NEVER!" }),
            1 => json!({ "prompt": [user], "chosen": [good], "rejected": [bad] }),
            2 => json!({ "chosen": [user, good], "rejected": [user, bad], "score_chosen": 8.5, "score_rejected": 8 }),
            3 => json!({ "prompt": asked, "prompt_id": "f0e3", "chosen": [user, good], "rejected": [user, bad],
                         "messages": [user, good] }),
            4 => json!({ "chosen": format!("\n\nHuman: {asked}\n\nAssistant: always the same"),
                         "rejected": format!("\n\nHuman: {asked}\n\nAssistant: NEVER!") }),
            5 => json!({ "messages": [user, good], "rejected": "NEVER!" }),
            _ => json!({ "prompt": asked, "completion": " always the same", "rejected": " NEVER!" }),
        }
    };
    (0..21).map(form).collect()
}

#[test]
fn what_is_chosen_becomes_likelier_than_what_is_rejected() {
    let setting = Setting::new();
    let lines: Vec<String> = pairs().iter().map(Value::to_string).collect();
    let data = setting.write("pairs.jsonl", lines.join("\n"));
    let train =
        ["adapters", "train", setting.model(), "--data", text(&data), "--validation", "0.34", "--step-tokens", "128"];
    let more = ["--learning-rate", "0.01", "--epochs", "3", "--rank", "4"];
    let told = printed(&setting.home, &[&train[..], &more, &["--json"]].concat());
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["pairs"], json!({ "training": 14, "validation": 7 }), "{told}");
    let (before, after) = (&told["losses"][0]["preferences"], &told["preferences"]);
    assert_eq!((&before["pairs"], &after["share"]), (&json!(7), &json!(1.0)), "{told}");
    let lead = |of: &Value| of["lead"].as_f64().expect("a number");
    assert!(lead(after) > lead(before) + 0.5, "{told}");
    assert_eq!((&told["options"]["beta"], &told["options"]["preference_weight"]), (&json!(2.0), &json!(1.0)));
    let folder = setting.folder.path().join("chosen");
    let more = [&more[..], &["--preference-weight", "0", "--output", text(&folder)]].concat();
    let output = run(&setting.home, &[&train[..], &more].concat());
    let [table, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(table.contains("CHOSEN LIKELIER") && table.contains("% of 7"), "{table}");
    assert!(said.contains("0 and 7 of them with a rejected answer"), "{said}");
    assert!(said.contains("messages, prompt, prompt_id, score_chosen, score_rejected"), "{said}");
}

#[test]
fn an_activated_adapter_has_the_tokens_that_begin_an_answer() {
    let setting = Setting::new();
    let line = |number: usize| {
        json!({ "messages": [{ "role": "user", "content": format!("Say {number}") },
                             { "role": "assistant", "content": "again" }], "rejected": "never", "margin": 2 })
        .to_string()
    };
    let data = setting.write("chat.jsonl", (0..4).map(line).collect::<Vec<_>>().join("\n"));
    let train = ["adapters", "train", setting.model(), "--data", text(&data), "--activated", "--epochs", "1"];
    let said = run(&setting.home, &train).stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("nothing is learned from: margin"), "{said}");
    assert!(said.contains("chosen likelier"), "{said}");
    let shown: Value =
        serde_json::from_str(&printed(&setting.home, &["adapters", "show", "chat", "--json"])).expect("JSON");
    // The template writes a newline before an answer.
    assert_eq!(shown["invocation_tokens"], json!([10]), "{shown}");
    let plain = setting.write("plain.jsonl", json!({ "text": "no prompt" }).to_string());
    let said = refused(&setting.home, &["adapters", "train", setting.model(), "--data", text(&plain), "--activated"]);
    assert!(said.contains("line 1") && said.contains("no prompt"), "{said}");
}

#[test]
fn wrong_data_is_refused_with_its_line_and_field() {
    let setting = Setting::new();
    let refusal = |content: &[u8], more: &[&str]| {
        let data = setting.write("wrong.jsonl", content);
        refused(&setting.home, &[&["adapters", "train", setting.model(), "--data", text(&data)][..], more].concat())
    };
    for (content, expected) in [
        ("", &["is empty"][..]),
        ("\n  \n", &["is empty"]),
        ("{\"prompt\": \"a\"", &["line 1", "JSON"]),
        ("[1]", &["line 1", "JSON"]),
        ("{}", &["line 1", "messages"]),
        ("{\"prompt\": \"a\"}", &["line 1", "completion"]),
        ("{\"prompt\": 1, \"completion\": \"b\"}", &["line 1", "prompt must be a text"]),
        ("{\"text\": \"a\", \"prompt\": \"b\"}", &["line 1"]),
        ("{\"txt\": \"a\"}", &["line 1", "txt"]),
        ("{\"text\": \"a\"}", &["line 1", "nothing to predict"]),
        ("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", &["line 1", "no answer"]),
        ("{\"messages\": [{\"role\": \"user\"}]}", &["line 1", "messages[0]"]),
        ("{\"messages\": 3}", &["line 1", "messages is not a list"]),
        ("{\"prompt\": \"a\", \"rejected\": \"b\"}", &["line 1", "it has prompt, rejected"]),
        ("{\"prompt\": \"a\", \"chosen\": \"b\"}", &["line 1", "it has prompt, chosen"]),
        ("{\"text\": \"some text\", \"rejected\": \"b\"}", &["line 1", "it has text, rejected"]),
        ("{\"prompt\": \"a\", \"chosen\": 1, \"rejected\": \"b\"}", &["line 1", "chosen must be a text"]),
        ("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}", &["line 1", "rejected", "leave the line out"]),
        ("{\"chosen\": \"b\", \"rejected\": \"c\"}", &["line 1", "give what they follow as \"prompt\""]),
        ("{\"prompt\": \"a\", \"chosen\": [], \"rejected\": []}", &["line 1", "chosen must end with an answer"]),
        ("{\"chosen\": [3], \"rejected\": []}", &["line 1", "chosen[0] needs"]),
        (
            "{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], \
              \"rejected\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"c\"}]}",
            &["line 1", "rejected must begin as chosen does"],
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, \
              {\"role\": \"user\", \"content\": \"c\"}], \"rejected\": \"d\"}",
            &["line 1", "messages must end with the answer"],
        ),
    ] {
        let said = refusal(content.as_bytes(), &[]);
        assert!(expected.iter().all(|part| said.contains(part)), "{content:?}: {said}");
    }
    let sound = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    let long = format!("{sound}{{\"prompt\": \"{}\", \"completion\": \"b\"}}", "a".repeat(100));
    let said = refusal(long.as_bytes(), &["--step-tokens", "64"]);
    assert!(said.contains("line 2") && said.contains("at most 64"), "{said}");
    assert!(refusal(b"{\"text\": \"\xff\"}", &[]).contains("UTF-8"));
    let pair = json!({ "prompt": "a".repeat(40), "chosen": "b", "rejected": "c" }).to_string();
    let said = refusal(pair.as_bytes(), &["--step-tokens", "64"]);
    assert!(said.contains("line 1") && said.contains("at most 64") && said.contains("two answers"), "{said}");
}

#[test]
fn wrong_flags_and_models_are_refused_before_anything_is_trained() {
    let setting = Setting::new();
    let data = setting.lines();
    let refusal = |model: &str, more: &[&str]| {
        refused(&setting.home, &[&["adapters", "train", model, "--data", text(&data)][..], more].concat())
    };
    let golden = |name: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/architectures").join(name).join("model.gguf")
    };
    let model = setting.model();
    for (said, expected) in [
        (refusal("/nowhere.gguf", &[]), "nowhere"),
        (refusal(text(&golden("qwen3moe")), &[]), "experts"),
        (refusal(text(&golden("lfm2")), &[]), "recurrent"),
        (refusal(model, &["--rank", "0"]), "rank is 0"),
        (refusal(model, &["--learning-rate", "fast"]), "auto"),
        (refusal(model, &["--learning-rate=-1"]), "learning_rate is -1"),
        (refusal(model, &["--learning-rate", "auto", "--validation", "0"]), "validation"),
        (refusal(model, &["--validation", "2"]), "--validation"),
        (refusal(model, &["--beta", "0"]), "beta is 0"),
        (refusal(model, &["--preference-weight=-1"]), "preference_weight is -1"),
        (refusal(model, &["--targets", "q_proj"]), "attn_q"),
        (refusal(model, &["--step-tokens", "100000000"]), "context"),
        (refusal(model, &["--threads", "0"]), "--threads"),
        (refusal(model, &["--name", "../x"]), "name"),
        (refusal(model, &["--resume"]), "lines.state"),
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
