//! Kernel packs with the real program and the real model: made, signed, installed, used, replaced and taken back.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{Server, ruvllm, start};
use crate::support::{failing_kernels, home, smollm2};

fn run(home: &TempDir, arguments: &[&str]) -> Output {
    ruvllm(home).args(arguments).output().expect("the program runs")
}

/// What a command prints; it must succeed.
fn printed(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn printed_json(home: &TempDir, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(home, arguments)).expect("JSON")
}

fn refused(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Builds and signs the included pack in a folder. Returns the folder with a slash, and the public key.
fn standard(home: &TempDir, folder: &Path) -> (String, String) {
    let (key_file, out) = (folder.join("secret.key"), folder.join("standard"));
    let key = printed(home, &["kernels", "keygen", text(&key_file)]).trim().to_owned();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs/standard");
    printed(home, &["kernels", "build", text(&source), "--out", text(&out)]);
    printed(home, &["kernels", "sign", text(&out), "--secret-key", text(&key_file)]);
    (format!("{}/", out.display()), key)
}

#[test]
fn packs_are_made_signed_installed_and_rolled_back() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let (pack, key) = standard(&home, folder.path());
    assert!(refused(&home, &["kernels", "install", &pack]).contains("not trusted: --kernel-key"));
    assert!(refused(&home, &["kernels", "install", &pack, "--allow-unsigned"]).contains("not trusted"));
    let verified = printed(&home, &["kernels", "verify", &pack, "--kernel-key", &key]);
    assert!(verified.contains("standard 1.0.0 is sound: 28 kernels"), "{verified}");
    // What the configuration trusts needs no flag.
    fs::write(home.path().join("config.toml"), format!("kernel_key = [\"{key}\"]\n")).expect("it is written");
    printed(&home, &["kernels", "install", &pack]);
    let list = printed(&home, &["kernels", "list"]);
    assert!(list.contains("standard") && list.contains(&key) && list.contains("enabled"), "{list}");
    assert!(printed(&home, &["kernels", "show", "standard"]).contains("rms_norm_f32_plain"));
    let measured = printed_json(&home, &["kernels", "bench", "standard", "--rounds", "1", "--json"]);
    assert_eq!(measured["kernels"][0]["operation"], "rms_norm", "{measured}");

    // A second version, and back.
    let out = folder.path().join("standard");
    let manifest = fs::read_to_string(out.join("kernels.json")).expect("a manifest").replace("1.0.0", "1.1.0");
    fs::write(out.join("kernels.json"), manifest).expect("it is written");
    assert!(refused(&home, &["kernels", "install", &pack]).contains("was changed"));
    let archive = folder.path().join("standard.tar.zst");
    let key_file = folder.path().join("secret.key");
    let sign = ["kernels", "sign", text(&out), "--secret-key", text(&key_file), "--archive", text(&archive)];
    printed(&home, &sign);
    printed(&home, &["kernels", "install", text(&archive)]);
    let version = |home: &TempDir| printed_json(home, &["kernels", "list", "--json"])["packs"][0]["version"].clone();
    assert_eq!(version(&home), "1.1.0");
    printed(&home, &["kernels", "rollback", "standard"]);
    assert_eq!(version(&home), "1.0.0");

    printed(&home, &["kernels", "enable", "standard", "rope_f32", "swiglu_f32"]);
    assert!(refused(&home, &["kernels", "enable", "standard", "other"]).contains("no kernel 'other'"));
    printed(&home, &["kernels", "disable", "standard"]);
    assert!(refused(&home, &["kernels", "verify", "standard"]).contains("ruvllm kernels enable standard"));
    // What lies in the store is checked whenever it is used.
    let installed = fs::read_dir(home.path().join("kernels/standard")).expect("a folder");
    for version in installed {
        fs::write(version.expect("a folder").path().join("simd128/standard.wasm"), b"changed").expect("it is written");
    }
    let list = printed(&home, &["kernels", "list"]);
    assert!(list.contains("unusable") && list.contains("not what the manifest says"), "{list}");
    printed(&home, &["kernels", "rm", "standard"]);
    assert!(refused(&home, &["kernels", "rm", "standard"]).contains("no pack 'standard' is installed"));
}

#[test]
fn unsigned_packs_are_marked_wherever_they_are_listed() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let out = folder.path().join("standard");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs/standard");
    printed(&home, &["kernels", "build", text(&source), "--out", text(&out)]);
    let pack = format!("{}/", out.display());
    assert!(refused(&home, &["kernels", "install", &pack]).contains("--allow-unsigned"));
    assert!(printed(&home, &["kernels", "install", &pack, "--allow-unsigned"]).contains("unsigned"));
    assert!(printed(&home, &["kernels", "list"]).contains("unsigned"));
    assert_eq!(printed_json(&home, &["kernels", "list", "--json"])["packs"][0]["unsigned"], true);
}

/// Has it answer, in whatever words: the last digits of logits may decide.
fn ask(server: &Server) {
    let body = json!({ "model": "smollm2", "messages": [{ "role": "user", "content": "Name three colours." }],
                       "max_tokens": 12, "temperature": 0 });
    let (status, answer) = server.post("/v1/chat/completions", "", &body);
    assert_eq!(status, 200, "{answer}");
    assert!(answer["usage"]["completion_tokens"].as_u64() > Some(0), "{answer}");
}

#[test]
fn a_server_uses_a_pack_and_replaces_it_while_it_runs() {
    smollm2();
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let (pack, key) = standard(&home, folder.path());
    fs::write(home.path().join("config.toml"), format!("kernel_key = [\"{key}\"]\n")).expect("it is written");
    printed(&home, &["kernels", "install", &pack]);
    let server = start(&home, &["smollm2", "--kernel-pack", "standard", "--log-level", "warn"]);
    ask(&server);
    let used = server.get_json("/v1/kernels")["models"][0].clone();
    let at_work = &used["packs"][0];
    assert_eq!((&at_work["pack"], &at_work["version"]), (&json!("standard"), &json!("1.0.0")), "{used}");
    assert_eq!((&at_work["signer"], &at_work["unsigned"]), (&json!(key), &json!(false)), "{used}");
    assert_eq!(used["choice"], "always");
    let kernels = used["kernels"].as_array().expect("kernels");
    for category in ["rms_norm", "rope", "swiglu"] {
        let kernel = kernels.iter().find(|kernel| kernel["category"] == category).expect(category);
        assert!(kernel["calls"].as_u64() > Some(100) && kernel["failed"] == 0, "{kernel}");
    }
    let metrics = server.get("/metrics", &server.operator());
    assert!(metrics.contains("ruvllm_kernel_calls_total{") && metrics.contains("rms_norm_f32"), "{metrics}");

    let change = |what: &str, body: Value| server.post(&format!("/v1/kernels/{what}"), &server.operator(), &body);
    assert_eq!(server.post("/v1/kernels/unload", "", &json!({})).0, 403, "for operators only");
    let (status, list) = change("unload", json!({}));
    assert_eq!((status, &list["models"][0]["packs"]), (200, &json!([])), "{list}");
    ask(&server);
    let (status, list) = change("rollback", json!({ "model": "smollm2" }));
    assert_eq!((status, &list["models"][0]["packs"][0]["pack"]), (200, &json!("standard")), "{list}");
    let url = format!("http://{}", server.address);
    let shown = printed(&home, &["kernels", "status", "--url", &url]);
    assert!(shown.contains("standard@1.0.0") && shown.contains("rms_norm_f32"), "{shown}");
    assert!(printed(&home, &["kernels", "unload", "--url", &url]).contains("native kernels"));
    assert!(printed(&home, &["kernels", "load", "--previous", "--url", &url]).contains("standard@1.0.0"));
    let (status, error) = change("load", json!({ "packs": ["../standard"] }));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("packs")), "{error}");
    for packs in [json!([]), json!(vec!["standard"; 9])] {
        assert_eq!(change("load", json!({ "packs": packs })).0, 400);
    }
    assert_eq!(change("load", json!({ "packs": ["standard"], "model": "other" })).0, 404);
    // What is faster on this machine, which it remembers.
    let (status, list) = change("load", json!({ "packs": ["standard"], "choice": "faster" }));
    assert_eq!((status, &list["models"][0]["choice"]), (200, &json!("faster")), "{list}");
    ask(&server);
    let chosen = list["models"][0]["operations"].as_array().expect("operations");
    let why = printed_json(&home, &["kernels", "why", "--json"]);
    let known = why["operations"].as_array().expect("operations");
    assert_eq!((chosen.len(), known.len()), (3, 3), "{list} {why}");
    for operation in known {
        let same = chosen.iter().find(|other| other["operation"] == operation["operation"]).expect("it was chosen");
        let [of_server, of_memory] = [same, operation].map(|of| ["numbers", "why"].map(|field| of[field].clone()));
        assert_eq!(of_server, of_memory);
        assert_eq!(
            (&operation["is_here"], &operation["candidates"][1]["measured"]),
            (&json!(true), &json!(1)),
            "{why}"
        );
    }
    let said = printed(&home, &["kernels", "why"]);
    assert!(said.contains("rms_norm of 576 numbers: ") && said.contains("standard@1.0.0/rms_norm_f32"), "{said}");
    assert!(printed(&home, &["kernels", "status", "--url", &url]).contains("smollm2: rms_norm by "));
    the_guides_example_is_used(&home, &server, folder.path());
    a_bad_pack_gives_way_by_itself(&home, &server, folder.path());
}

/// What docs/kernel-packs.md tells authors to do, with the example in Rust.
fn the_guides_example_is_used(home: &TempDir, server: &Server, folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs/examples/rust");
    let (out, archive, key_file) = (folder.join("mine"), folder.join("mine.tar.zst"), folder.join("secret.key"));
    printed(home, &["kernels", "build", text(&source), "--out", text(&out)]);
    let sign = ["kernels", "sign", text(&out), "--secret-key", text(&key_file), "--archive", text(&archive)];
    printed(home, &sign);
    let verified = printed(home, &["kernels", "verify", text(&archive)]);
    assert!(verified.contains("norm-rust 1.0.0 is sound: 1 kernels"), "{verified}");
    printed(home, &["kernels", "install", text(&archive)]);
    let body = json!({ "packs": ["norm-rust", "standard"], "choice": "always" });
    assert_eq!(server.post("/v1/kernels/load", &server.operator(), &body).0, 200);
    ask(server);
    let model = server.get_json("/v1/kernels")["models"][0].clone();
    let kernel = |category: &str| {
        let kernels = model["kernels"].as_array().expect("kernels");
        kernels.iter().find(|kernel| kernel["category"] == category).expect(category).clone()
    };
    let [norm, rope] = [kernel("rms_norm"), kernel("rope")];
    assert_eq!((&norm["pack"], &rope["pack"]), (&json!("norm-rust@1.0.0"), &json!("standard@1.0.0")), "{model}");
    assert!(norm["calls"].as_u64() > Some(100) && norm["failed"] == 0, "{norm}");
}

/// It is sound while it is checked, and fails in its first answer.
fn a_bad_pack_gives_way_by_itself(home: &TempDir, server: &Server, folder: &Path) {
    let (source, out) = (failing_kernels(folder, 200), folder.join("bad"));
    let manifest = fs::read_to_string(source.join("kernels.json")).expect("a manifest");
    fs::write(source.join("kernels.json"), manifest.replace("\"standard\"", "\"bad\"")).expect("it is written");
    printed(home, &["kernels", "build", text(&source), "--out", text(&out)]);
    printed(home, &["kernels", "sign", text(&out), "--secret-key", text(&folder.join("secret.key"))]);
    printed(home, &["kernels", "install", &format!("{}/", out.display())]);
    let load = |packs: Value| {
        let body = json!({ "packs": packs, "choice": "always" });
        assert_eq!(server.post("/v1/kernels/load", &server.operator(), &body).0, 200);
    };
    load(json!(["standard"]));
    load(json!(["bad"]));
    ask(server);
    // The server looks twice a second.
    let began = Instant::now();
    let model = loop {
        let model = server.get_json("/v1/kernels")["models"][0].clone();
        if model["withdrawn"] == 1 {
            break model;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{model}");
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(model["packs"][0]["pack"], "standard", "{model}");
    ask(server);
}
