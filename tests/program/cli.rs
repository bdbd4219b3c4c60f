//! The program as a user meets it: commands, exit codes, one clear line for every mistake.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{golden, smollm2};
use ruvllm_kernels::WeightType;
use ruvllm_model::formats::gguf::Value as GgufValue;
use ruvllm_model::formats::gguf::write::{Header, Writer};
use ruvllm_model::quantize::Recipe;
use serde_json::Value;

fn ruvllm(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Runs a command that must fail, and gives its one line of explanation.
fn failure(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.starts_with("error: ") && !message.contains("panicked"), "{message}");
    message
}

fn json(arguments: &[&str]) -> Value {
    let output = ruvllm(arguments).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn run_gives_the_greedy_answer_as_one_json_object() {
    smollm2();
    let prompt = golden().into_iter().find(|prompt| prompt.name == "capital").expect("it is in the references");
    let arguments = ["run", "smollm2", &prompt.text, "--raw", "--temperature", "0", "--max-tokens", "8", "--json"];
    let answer = json(&arguments);
    let tokens: Vec<u32> = serde_json::from_value(answer["tokens"].clone()).expect("ids");
    assert_eq!(tokens, prompt.greedy[..8]);
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.tokens.len());
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    assert!(answer["text"].as_str().expect("a text").contains("Paris"));
    for timing in ["ttft_ms", "prefill_tok_s", "decode_tok_s"] {
        assert!(answer["timings"][timing].as_f64().expect("a number") > 0.0, "{timing}");
    }
}

#[test]
fn speculation_changes_the_steps_and_not_the_answer() {
    smollm2();
    let arguments = ["run", "smollm2", "one two three four one two three four one two", "--raw", "-n", "24", "--json"];
    let run = |more: &[&str]| json(&[&arguments[..], &["--temperature", "0"], more].concat());
    let (off, auto) = (run(&["--speculation", "off"]), run(&[]));
    assert_eq!(off["tokens"], auto["tokens"]);
    assert_eq!((&off["usage"]["steps"], &off["usage"]["drafted_tokens"]), (&Value::from(24), &Value::from(0)));
    assert!(auto["usage"]["steps"].as_u64().expect("a count") < 24);
    assert!(auto["usage"]["accepted_tokens"].as_u64().expect("a count") > 0);
    let hot = json(&[&arguments[..], &["--temperature", "0.9"]].concat());
    assert_eq!(hot["usage"]["drafted_tokens"], 0, "auto is for low temperatures");
    let usage = ruvllm(&["run", "smollm2", "hi", "--speculation", "maybe"]).output().expect("the program starts");
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn bench_compares_texts_with_and_without_speculation() {
    smollm2();
    let arguments = ["bench", "smollm2", "-p", "8", "-n", "2", "-r", "1", "--answer", "4"];
    let bench = json(&[&arguments[..], &["--speculation", "on", "--json"]].concat());
    let works = bench["speculation"].as_array().expect("kinds of work");
    assert_eq!(works.len(), 5);
    for work in works {
        assert!(work["tokens_per_step"].as_f64().expect("a number") >= 1.0, "{work}");
        assert!(work["gain"]["median"].as_f64().expect("a number") > 0.0, "{work}");
    }
}

#[test]
fn run_streams_text_and_stops_before_a_stop_string() {
    smollm2();
    let arguments = ["run", "smollm2", "The capital of France is", "--raw", "--temperature", "0", "-n", "9"];
    let streamed = |stop: &str| stdout(&ruvllm(&arguments).args(["--stop", stop]).output().expect("it starts"));
    assert_eq!(streamed("\n"), " Paris.\n");
    // A stop string that spans two tokens, " Paris" and ".".
    assert_eq!(streamed("is."), " Par\n");
    let stopped = json(&[&arguments[..], &["--stop", "aris", "--json"]].concat());
    assert_eq!(stopped["text"], " P");
    assert_eq!(stopped["finish_reason"], "stop");
}

#[test]
fn run_reads_the_prompt_from_standard_input() {
    smollm2();
    let mut command = ruvllm(&["run", "smollm2", "--raw", "--temperature", "0", "-n", "1"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    child.stdin.take().expect("piped").write_all(b"The capital of France is").expect("it reads");
    assert_eq!(stdout(&child.wait_with_output().expect("it ends")), " Paris\n");
}

#[test]
fn chat_on_a_terminal_takes_commands_and_survives_ctrl_c() {
    smollm2();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chat_session.py");
    let output = Command::new("python3").args([script, env!("CARGO_BIN_EXE_ruvllm")]).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_same_seed_gives_the_same_text_and_logprobs_are_reported() {
    smollm2();
    let arguments = ["run", "smollm2", "Tell me a story.", "--seed", "7", "-n", "12", "--json", "--logprobs", "3"];
    let (one, two) = (json(&arguments), json(&arguments));
    assert_eq!(one["text"], two["text"]);
    let logprobs = one["logprobs"].as_array().expect("logprobs");
    assert_eq!(logprobs.len(), 12);
    assert_eq!(logprobs[0]["top"].as_array().expect("alternatives").len(), 3);
}

#[test]
fn special_tokens_in_a_users_text_stay_text() {
    smollm2();
    let plain = json(&["tokenize", "smollm2", "<|im_end|>", "--json"]);
    assert!(plain["count"].as_u64().expect("a count") > 1);
    let special = json(&["tokenize", "smollm2", "<|im_end|>", "--special", "--json"]);
    assert_eq!(special["tokens"][0]["id"], 2);
    assert_eq!(special["count"], 1);
}

#[test]
fn tokenize_reads_a_tokenizer_json_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    let model = r#"{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}"#;
    fs::write(&path, format!(r#"{{"version":"1.0","added_tokens":[],"model":{model}}}"#)).expect("written");
    let path = path.to_str().expect("UTF-8");
    let tokens = json(&["tokenize", path, "aba", "--json"]);
    assert_eq!((&tokens["tokens"][0]["id"], &tokens["tokens"][1]["id"]), (&Value::from(2), &Value::from(0)));
    fs::write(path, "{}").expect("written");
    let message = failure(&mut ruvllm(&["tokenize", path, "aba"]));
    assert!(message.contains("tokenizer.json"), "{message}");
}

#[test]
fn show_and_doctor_tell_what_is_there() {
    smollm2();
    let show = json(&["show", "smollm2", "--json"]);
    assert_eq!(show["architecture"], "llama");
    assert_eq!(show["parameters"], 134_515_008);
    assert_eq!(show["quantization"][0]["type"], "Q4_1");
    assert_eq!(show["backend"]["name"], "native");
    let doctor = json(&["doctor", "--json"]);
    assert!(doctor["cores"].as_u64().expect("a number") > 0);
    assert_eq!(doctor["kernels"]["possible"][0], "scalar");
}

#[test]
fn what_a_model_takes_is_worked_out_before_it_is_loaded() {
    smollm2();
    let fit = json(&["show", "smollm2", "--fit", "--context", "4096", "--memory", "4G", "--json"]);
    assert_eq!((&fit["fits"], &fit["context"], &fit["context_fits"]), (&true.into(), &4096.into(), &8192.into()));
    let parts = ["weights_bytes", "buffers_bytes", "kv_bytes"].map(|part| fit[part].as_u64().expect("a number"));
    assert_eq!(fit["needed_bytes"].as_u64(), Some(parts.iter().sum()));
    assert!(parts[0] > 90_000_000 && parts[2] > 10_000_000, "{fit}");
    // Too little for the whole context, and too little for any.
    let short = json(&["show", "smollm2", "--fit", "--context", "8192", "--kv", "f16", "--memory", "256M", "--json"]);
    let fitting = short["context_fits"].as_u64().expect("a number");
    assert!(short["fits"] == false && (1024..8192).contains(&fitting), "{short}");
    assert!(short["remedy"].as_str().expect("advice").contains("--context"), "{short}");
    let none = json(&["show", "smollm2", "--fit", "--memory", "50M", "--json"]);
    assert!(none["context_fits"].is_null() && none["remedy"].as_str().expect("advice").contains("smaller model"));
    let shown = stdout(&ruvllm(&["show", "smollm2", "--fit"]).output().expect("the program starts"));
    assert!(shown.contains("verdict") && shown.contains("fits"), "{shown}");
}

#[test]
fn experts_that_do_not_fit_into_memory_are_kept_on_disk() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/architectures/qwen3moe/model.gguf");
    let fit =
        |arguments: &[&str]| json(&[&["show", file, "--fit", "--context", "64", "--json"][..], arguments].concat());
    let roomy = fit(&[]);
    assert!(roomy["fits"] == true && roomy["experts_on_disk_bytes"] == 0, "{roomy}");
    let on_disk = fit(&["--experts", "disk"]);
    let bytes = |fit: &Value, key: &str| fit[key].as_u64().expect("a number");
    assert!(bytes(&on_disk, "experts_on_disk_bytes") > 0);
    assert!(bytes(&on_disk, "weights_bytes") < bytes(&roomy, "weights_bytes"));
    // Between the two: only without all experts in memory.
    let memory = (bytes(&roomy, "needed_bytes") - 1).to_string();
    let tight = fit(&["--memory", &memory]);
    assert!(tight["fits"] == true && tight["needed_bytes"] == on_disk["needed_bytes"], "{tight}");
    let refused = fit(&["--memory", &memory, "--experts", "memory"]);
    assert!(refused["fits"] == false, "{refused}");
}

#[test]
fn bench_and_perplexity_report_figures() {
    smollm2();
    let bench = json(&["bench", "smollm2", "-p", "16", "-n", "4", "-d", "20", "-s", "2", "-r", "1", "--json"]);
    assert!(bench["prefill"]["tok_s"]["median"].as_f64().expect("a number") > 0.0);
    assert!(bench["decode"]["tok_s"]["median"].as_f64().expect("a number") > 0.0);
    assert!(bench.get("speculation").is_none(), "plain decoding is what is measured unless asked");
    let first_token = &bench["first_token"];
    let ms = |part: &str| first_token[format!("{part}_ms")].as_f64().expect("a time");
    let parts = ["encode", "queue", "embed", "matmul", "attention", "other", "sample"].map(ms);
    assert!((parts.iter().sum::<f64>() - ms("total")).abs() < 0.01, "{first_token}");
    assert!(ms("matmul") > 0.0 && ms("attention") > 0.0, "{first_token}");
    // Every weight of the layers once for each token, and the output matrix for the last.
    let tokens = first_token["tokens"].as_u64().expect("a count");
    assert_eq!(first_token["products"], tokens * 106_168_320 + 49152 * 576, "{first_token}");
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, &include_str!("../data/essays.txt")[..1600]).expect("room for a file");
    let perplexity = json(&["perplexity", "smollm2", text.to_str().expect("UTF-8"), "--context", "128", "--json"]);
    assert_eq!(perplexity["chunks"], 2);
}

#[test]
fn models_that_work_at_once_are_measured_in_shares_of_what_each_reaches_alone() {
    let bench = json(&["bench", "together", "smollm2", "smollm2", "--seconds", "0.3", "-r", "1", "--json"]);
    let works = bench["works"].as_array().expect("kinds of work");
    assert_eq!(works.len(), 2);
    for work in works {
        assert_eq!(work["models"].as_array().expect("the models").len(), 2, "{work}");
        assert!(work["together"]["median"].as_f64().expect("a number") > 0.2, "{work}");
    }
}

#[test]
fn bench_opens_sessions_and_resumes_them_from_disk() {
    smollm2();
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().to_str().expect("a readable path");
    let arguments = ["bench", "smollm2", "-p", "8", "-n", "2", "-r", "1", "--sessions", "5", "--json"];
    let bench = json(&[&arguments[..], &["--kv-memory", "24M", "--kv-disk", disk]].concat());
    let sessions = &bench["sessions"];
    assert_eq!(sessions["unchanged_answers"], 5, "{sessions}");
    assert_eq!(sessions["resumed_sessions"]["computed_again"], 0, "{sessions}");
    assert!(sessions["resumed_tokens"]["from_disk"].as_u64().expect("a count") > 500, "{sessions}");
    let budget = &sessions["budget_bytes"];
    assert!(sessions["used_bytes_max"].as_u64() <= budget.as_u64() && budget == 24 << 20, "{sessions}");
}

#[test]
fn every_mistake_is_one_clear_line() {
    smollm2();
    let check = |arguments: &[&str], parts: &[&str]| {
        let message = failure(&mut ruvllm(arguments));
        assert_eq!(message.lines().count(), 1, "{message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{part}: {message}"));
    };
    check(&["run", "smollm3", "hi"], &["smollm3", "smollm2"]);
    check(&["run", "./missing.gguf", "hi"], &["./missing.gguf"]);
    check(&["run", "smollm2", " "], &["prompt"]);
    check(&["run", "smollm2", "hi", "--temperature", "-1"], &["temperature", "-1"]);
    check(&["run", "smollm2", "hi", "--temperature", "NaN"], &["temperature"]);
    check(&["run", "smollm2", "hi", "--top-p", "0"], &["top_p"]);
    check(&["run", "smollm2", "hi", "--logit-bias", "x"], &["--logit-bias", "ID=X"]);
    check(&["run", "smollm2", "hi", "--logit-bias", "99999999=1"], &["logit_bias", "99999999"]);
    check(&["run", "smollm2", "hi", "--max-tokens", "0"], &["max_tokens"]);
    check(&["run", "smollm2", "hi", "--max-tokens", "9000"], &["9000", "8192"]);
    check(&["run", "smollm2", "hi", "--context", "9000"], &["9000", "8192"]);
    check(&["run", "smollm2", "hi", "--context", "20"], &["context"]);
    check(&["run", "smollm2", "hi", "--threads", "0"], &["threads"]);
    check(&["run", "smollm2", "a\u{4}b"], &["\\u{4}", "vocabulary"]);
    check(&["run", "smollm2", "hi", "--stop", ""], &["stop"]);
    check(&["perplexity", "smollm2", "missing.txt"], &["missing.txt"]);
    check(&["bench", "smollm2", "--repeat", "0"], &["--repeat"]);
    check(&["bench", "smollm2", "--answer", "1"], &["--answer"]);
    check(&["bench", "smollm2", "--sessions", "0"], &["--sessions", "at least 1"]);
    check(&["bench", "smollm2", "--arrival", "0"], &["--arrival", "at least 1"]);
    check(&["bench", "smollm2", "--arrival", "9000"], &["--arrival 9000", "8192", "--context"]);
    check(&["bench", "smollm2", "--depth", "9000"], &["--depth 9000", "8192", "--context"]);
    check(&["bench", "smollm2", "--prefix", "--context", "600"], &["--prefix", "600", "--context"]);
    check(&["bench", "smollm2", "-p", "16", "-n", "4", "--prefix", "--kv-memory", "1M"], &["--prefix", "--kv-memory"]);
    check(&["bench", "smollm2", "--kv-disk", "/proc/none"], &["/proc/none"]);
    check(&["show", "../../etc/passwd"], &["passwd"]);
    check(&["rm", "never-pulled"], &["never-pulled"]);
    let kernels = failure(ruvllm(&["run", "smollm2", "hi"]).env("RUVLLM_KERNELS", "amx9"));
    assert!(kernels.contains("amx9") && kernels.contains("scalar"), "{kernels}");
    let usage = ruvllm(&["run"]).output().expect("the program starts");
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn damaged_files_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("text.gguf"), "not a model").expect("written");
    let whole = fs::read(smollm2()).expect("readable");
    fs::write(path("cut.gguf"), &whole[..whole.len() / 2]).expect("written");
    for name in ["text.gguf", "cut.gguf"] {
        let message = failure(&mut ruvllm(&["run", &path(name), "hi"]));
        assert!(message.contains(name), "{message}");
    }
}

/// A file with one matrix of 96 columns, one of 256 and a vector.
fn write_small_model(path: &Path, weight: f32) {
    let mut header = Header::new();
    header.set("general.architecture", GgufValue::String("llama"));
    let tensors: [(&str, &[usize]); 3] =
        [("blk.0.ffn_up.weight", &[96, 4]), ("blk.0.ffn_down.weight", &[256, 4]), ("output_norm.weight", &[96])];
    tensors.iter().for_each(|(name, dims)| header.add_tensor(name, dims, WeightType::F32));
    let mut writer = Writer::create(path, &header).expect("it can be written");
    for (_, dims) in tensors {
        let count: usize = dims.iter().product();
        let weights = (0..count).map(|i| if i == 5 { weight } else { (i as f32).sin() });
        let bytes: Vec<u8> = weights.flat_map(f32::to_le_bytes).collect();
        writer.write(&bytes).expect("written");
    }
    writer.finish().expect("finished");
}

#[test]
fn quantize_tells_what_it_will_do_and_what_it_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_small_model(&folder.path().join("source.gguf"), 0.5);
    let (source, small, smaller) = (path("source.gguf"), path("small.gguf"), path("smaller.gguf"));
    let planned = json(&["quantize", &source, "--to", "q4_k", "--dry-run", "--json"]);
    assert_eq!(planned["tensors"][0]["to"], "Q5_0");
    assert_eq!(planned["tensors"][0]["instead_of"], "Q4_K");
    assert_eq!(planned["tensors"][1]["to"], "Q4_K");
    assert_eq!(planned["tensors"][2]["to"], "F32");
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    let written = json(&["quantize", &source, &small, "--to", "q4_k", "--json"]);
    assert_eq!(written["file_bytes"], planned["file_bytes"]);
    assert_eq!(written["file_bytes"], fs::metadata(&small).expect("it is there").len());
    assert_eq!(written["fallbacks"][0]["tensor"], "blk.0.ffn_up.weight");
    assert_eq!(written["warning"], Value::Null);
    let of_type = |name: &str| {
        let types = written["types"].as_array().expect("types");
        types.iter().find(|of| of["type"] == name).expect("it was written")["relative_rms_error"].as_f64()
    };
    assert!((0.01..0.1).contains(&of_type("Q4_K").expect("a number")));
    assert_eq!(of_type("F32"), Some(0.0));
    let again = ruvllm(&["quantize", &small, &smaller, "--to", "q4_0"]).output().expect("the program starts");
    let warning = String::from_utf8_lossy(&again.stderr);
    assert!(warning.starts_with("warning: ") && warning.contains("(Q5_0, Q4_K): quality is lost twice"), "{warning}");
    let told = stdout(&again);
    assert!(told.contains("Q4_0") && told.contains("bits per weight"), "{told}");
    let help = stdout(&ruvllm(&["quantize", "--help"]).output().expect("the program starts"));
    for recipe in Recipe::ALL {
        assert!(help.contains(&recipe.to_string()), "{recipe}");
    }
}

#[test]
fn quantize_refuses_what_cannot_work_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_small_model(&folder.path().join("good.gguf"), 0.5);
    write_small_model(&folder.path().join("nan.gguf"), f32::NAN);
    write_small_model(&folder.path().join("large.gguf"), 1e6);
    fs::write(path("text.gguf"), "not a model").expect("written");
    fs::write(path("taken.gguf"), "precious").expect("written");
    let whole = fs::read(path("good.gguf")).expect("readable");
    fs::write(path("cut.gguf"), &whole[..whole.len() - 500]).expect("written");
    let before = fs::read_dir(folder.path()).expect("readable").count();
    let check = |input: &str, output: &str, more: &[&str], parts: &[&str]| {
        let (input, output) = (path(input), path(output));
        let message = failure(ruvllm(&["quantize", &input, &output]).args(["--to", "f16"]).args(more));
        assert_eq!(message.lines().count(), 1, "{message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{part}: {message}"));
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), before, "{message}");
    };
    check("missing.gguf", "out.gguf", &[], &["missing.gguf"]);
    check("text.gguf", "out.gguf", &[], &["text.gguf", "not a GGUF file"]);
    check("cut.gguf", "out.gguf", &[], &["cut.gguf", "is the download complete?"]);
    check("nan.gguf", "out.gguf", &[], &["blk.0.ffn_up.weight", "row 0", "element 5", "NaN"]);
    check("large.gguf", "out.gguf", &[], &["blk.0.ffn_up.weight", "1000000", "bf16"]);
    check("good.gguf", "taken.gguf", &[], &["taken.gguf", "--force"]);
    check("nan.gguf", "taken.gguf", &["--force"], &["NaN"]);
    check("good.gguf", "good.gguf", &["--force"], &["good.gguf", "input itself"]);
    check("good.gguf", "../good.gguf/../good.gguf", &[], &["folder", "does not exist"]);
    check("good.gguf", "", &["--force"], &["is a folder"]);
    assert_eq!(fs::read(path("taken.gguf")).expect("readable"), b"precious");
    let forced = ruvllm(&["quantize", &path("good.gguf"), &path("taken.gguf"), "--to", "f16", "--force"]).output();
    assert!(forced.expect("the program starts").status.success());
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), before);
    assert!(fs::read(path("taken.gguf")).expect("readable").starts_with(b"GGUF"));
    for usage in [&["--to", "q9", "out.gguf"][..], &["--to", "q4_0"], &["out.gguf"]] {
        let output = ruvllm(&["quantize", "smollm2"]).args(usage).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn a_full_disk_and_a_closed_pipe_end_the_program_quietly() {
    if Path::new("/dev/full").exists() {
        let full = File::options().write(true).open("/dev/full").expect("it opens");
        let message = failure(ruvllm(&["doctor"]).stdout(full));
        assert!(message.contains("No space"), "{message}");
    }
    let mut child = ruvllm(&["doctor"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}
