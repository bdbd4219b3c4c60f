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

#[test]
fn an_activated_adapter_has_the_tokens_that_begin_an_answer() {
    let setting = Setting::new();
    let line = |number: usize| {
        json!({ "messages": [{ "role": "user", "content": format!("Say {number}") },
                             { "role": "assistant", "content": "again" }], "rejected": "never" })
        .to_string()
    };
    let data = setting.write("chat.jsonl", (0..4).map(line).collect::<Vec<_>>().join("\n"));
    let train = ["adapters", "train", setting.model(), "--data", text(&data), "--activated", "--epochs", "1"];
    let said = run(&setting.home, &train).stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("nothing is learned from: rejected"), "{said}");
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
    ] {
        let said = refusal(content.as_bytes(), &[]);
        assert!(expected.iter().all(|part| said.contains(part)), "{content:?}: {said}");
    }
    let sound = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    let long = format!("{sound}{{\"prompt\": \"{}\", \"completion\": \"b\"}}", "a".repeat(100));
    let said = refusal(long.as_bytes(), &["--step-tokens", "64"]);
    assert!(said.contains("line 2") && said.contains("at most 64"), "{said}");
    assert!(refusal(b"{\"text\": \"\xff\"}", &[]).contains("UTF-8"));
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
        (refusal(model, &["--targets", "q_proj"]), "attn_q"),
        (refusal(model, &["--step-tokens", "100000000"]), "context"),
        (refusal(model, &["--threads", "0"]), "--threads"),
        (refusal(model, &["--name", "../x"]), "name"),
        (refusal(model, &["--resume"]), "lines.state"),
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
