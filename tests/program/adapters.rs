//! LoRA adapters with the real program and the real model: the command line, the endpoints, tenants and versions.

use std::io::Read;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use crate::peft::{random_adapter, random_adapter_with, write_peft};
use crate::server::{Server, ruvllm, start};
use crate::support::{home, smollm2};
use serde_json::{Value, json};
use tempfile::TempDir;

const QUESTION: &str = "Name three colours.";

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

/// The answer of a chat, always the same for a model and its adapters.
fn ask(server: &Server, headers: &str, change: Value) -> (u16, Value) {
    let mut body = json!({ "model": "smollm2", "messages": [{ "role": "user", "content": QUESTION }], "max_tokens": 12,
                           "temperature": 0 });
    for (key, value) in change.as_object().expect("an object") {
        body[key] = value.clone();
    }
    server.post("/v1/chat/completions", headers, &body)
}

fn answer(server: &Server, headers: &str, change: Value) -> String {
    let (status, answer) = ask(server, headers, change.clone());
    assert_eq!(status, 200, "{change}: {answer}");
    answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
}

fn names(list: &Value) -> Vec<&str> {
    list["data"].as_array().expect("a list").iter().filter_map(|card| card["id"].as_str()).collect()
}

#[test]
fn adapters_are_pulled_listed_shown_used_and_removed() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let source = random_adapter(folder.path(), "Pirate", 1);
    assert!(printed(&home, &["adapters", "list"]).is_empty());
    let pulled = printed_json(&home, &["adapters", "pull", text(&source), "--name", "smollm2:pirate", "--json"]);
    assert_eq!((&pulled["name"], &pulled["rank_max"]), (&json!("smollm2:pirate"), &json!(4)), "{pulled}");
    assert!(printed(&home, &["adapters", "pull", text(&source)]).starts_with("pirate is ready"));
    let listed = printed(&home, &["adapters", "list"]);
    assert!(listed.contains("smollm2:pirate") && listed.contains("HuggingFaceTB/SmolLM2-135M-Instruct"), "{listed}");
    let shown = printed_json(&home, &["adapters", "show", "smollm2:pirate", "--json"]);
    assert_eq!(shown["digest"], pulled["digest"]);
    assert_eq!(shown["targets"].as_array().map(Vec::len), Some(4), "{shown}");
    assert!(printed(&home, &["adapters", "show", text(&source)]).contains("HuggingFaceTB/SmolLM2-135M-Instruct"));

    let answer = |more: &[&str]| {
        let arguments = [&["run", "smollm2", QUESTION, "--temperature", "0", "-n", "12", "-c", "512"], more].concat();
        printed(&home, &arguments)
    };
    let plain = answer(&[]);
    let changed = answer(&["--adapter", "pirate"]);
    assert_ne!(plain, changed, "the adapter does something");
    assert_eq!(answer(&["--adapter", text(&source)]), changed, "by its path too");
    assert_eq!(answer(&["--adapter", "pirate=0"]), plain, "and nothing with the weight 0");

    // A mean of the same adapter twice is that adapter.
    let twice = ["adapters", "merge", "pirate", "smollm2:pirate", "--name", "twice", "--rank", "4", "--json"];
    let merged = printed_json(&home, &twice);
    assert!(merged["rank"] == 4 && merged["relative_error"].as_f64().expect("a number") < 1e-3, "{merged}");
    assert!(printed(&home, &["adapters", "show", "twice"]).contains("merged from"));
    assert_ne!(answer(&["--adapter", "twice"]), plain);
    let baked = folder.path().join("baked.gguf");
    let into = ["adapters", "merge", "pirate", "--into", "smollm2", "--f32", "--output", text(&baked), "--json"];
    assert_eq!(printed_json(&home, &into)["tensors"], 120, "four matrices of 30 layers");
    assert!(refused(&home, &into).contains("exists"));
    printed(&home, &["adapters", "rm", "twice"]);

    let rows = printed_json(&home, &["adapters", "list", "--json"]);
    assert_eq!(rows["adapters"].as_array().map(Vec::len), Some(2), "{rows}");
    printed(&home, &["adapters", "rm", "pirate"]);
    let short = printed(&home, &["adapters", "show", "pirate"]);
    assert!(short.contains("smollm2:pirate"), "the only one of that name: {short}");
    let doubled = ["adapters", "merge", "pirate=2", "--name", "doubled"];
    assert!(printed(&home, &doubled).contains("doubled"));
    printed(&home, &["adapters", "rm", "doubled", "pirate"]);
    assert!(refused(&home, &["adapters", "rm", "pirate"]).contains("no adapter is called"));
    assert!(refused(&home, &["adapters", "show", "pirate"]).contains("ruvllm adapters pull"));
    assert!(refused(&home, &["run", "smollm2", "Hi", "--adapter", "pirate"]).contains("no adapter is called"));
}

#[test]
fn what_is_no_adapter_of_the_model_is_refused_by_name() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let wrong = folder.path().join("wrong");
    std::fs::create_dir(&wrong).expect("a folder");
    let name = |matrix: &str| format!("base_model.model.model.layers.0.self_attn.q_proj.{matrix}.weight");
    let header = json!({ name("lora_A"): { "dtype": "F32", "shape": [1, 8], "data_offsets": [0, 32] },
                         name("lora_B"): { "dtype": "F32", "shape": [8, 1], "data_offsets": [32, 64] } });
    let config = json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"] });
    write_peft(&wrong, &config, &header, &[0; 64]);
    let said = refused(&home, &["run", "smollm2", "Hi", "--adapter", text(&wrong)]);
    assert!(said.contains("q_proj") && said.contains("576"), "it says what is expected: {said}");
    let mut dora = config.clone();
    dora["use_dora"] = json!(true);
    write_peft(&wrong, &dora, &header, &[0; 64]);
    assert!(refused(&home, &["adapters", "pull", text(&wrong)]).contains("use_dora"));
    for path in ["/etc/passwd", "/nowhere", text(folder.path())] {
        assert!(refused(&home, &["adapters", "pull", path]).contains("is no adapter"), "{path}");
    }
    assert!(refused(&home, &["serve", "smollm2", "--port", "0", "--adapter", "nothing"]).contains("--adapter nothing"));
    let folders = ["serve", "smollm2", "--port", "0", "--adapter-folder", "/nowhere"];
    assert!(refused(&home, &folders).contains("--adapter-folder"));
}

#[test]
fn a_served_adapter_is_requested_by_its_names_in_every_api() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let (one, two) = (random_adapter(folder.path(), "one", 1), random_adapter(folder.path(), "two", 2));
    printed(&home, &["adapters", "pull", text(&two), "--name", "smollm2:stored"]);
    let flag = format!("mine={}", text(&one));
    let server = start(&home, &["smollm2", "--context", "512", "--adapter", &flag, "--adapter-memory", "64M"]);
    let plain = answer(&server, "", json!({}));
    let mine = answer(&server, "", json!({ "model": "mine" }));
    let stored = answer(&server, "", json!({ "model": "smollm2:stored" }));
    assert!(plain != mine && mine != stored && plain != stored, "{plain:?} {mine:?} {stored:?}");
    for same in [
        json!({ "model": "smollm2:mine" }),
        json!({ "adapter": "mine" }),
        json!({ "adapter": [{ "name": "mine", "weight": 1.0 }] }),
        json!({ "lora": [{ "id": 0, "scale": 1.0 }] }),
    ] {
        assert_eq!(answer(&server, "", same.clone()), mine, "{same}");
    }
    let both = answer(
        &server,
        "",
        json!({ "adapter": [{ "name": "mine", "weight": 0.5 }, { "name": "stored", "weight": 0.5 }] }),
    );
    assert!(both != mine && both != stored && both != plain, "{both}");
    assert_eq!(answer(&server, "", json!({ "adapter": "" })), plain);

    // The other APIs generate the same text.
    let prompt = json!([{ "role": "user", "content": QUESTION }]);
    let message =
        json!({ "model": "smollm2:mine", "messages": prompt, "max_tokens": 12, "temperature": 0, "top_k": 1 });
    assert_eq!(server.post("/v1/messages", "", &message).1["content"][0]["text"], mine);
    let response = json!({ "model": "mine", "input": QUESTION, "max_output_tokens": 12, "temperature": 0 });
    let (_, told) = server.post("/v1/responses", "", &response);
    assert_eq!(told["output"][0]["content"][0]["text"], mine, "{told}");
    let options = json!({ "temperature": 0, "num_predict": 12 });
    let chat = json!({ "model": "smollm2:mine", "messages": prompt, "options": options, "stream": false });
    let (_, told) = server.post("/api/chat", "", &chat);
    assert_eq!(told["message"]["content"], mine, "{told}");
    let completion =
        json!({ "model": "smollm2", "adapter": "mine", "prompt": "The sky is", "max_tokens": 8, "temperature": 0 });
    let (_, with) = server.post("/v1/completions", "", &completion);
    let mut without = completion.clone();
    without["adapter"] = json!("");
    assert_ne!(with["choices"][0]["text"], server.post("/v1/completions", "", &without).1["choices"][0]["text"]);

    check_listings(&server);
    check_unknown(&server);
    let metrics = server.get("/metrics", &server.operator());
    assert!(metrics.contains("ruvllm_adapter_requests_total{model_name=\"smollm2\",adapter=\"mine\"}"), "{metrics}");
    assert!(metrics.contains("ruvllm_adapters_registered{model_name=\"smollm2\"} 2"), "{metrics}");
    let admin = server.get_json("/admin/models");
    assert_eq!(admin["models"][0]["adapters"]["budget_bytes"], 64 << 20, "{admin}");
    let ps = printed(&home, &["ps", "--url", &format!("http://{}", server.address)]);
    assert!(ps.contains("adapters") && ps.contains("67.1 MB"), "{ps}");
}

fn check_listings(server: &Server) {
    let list = server.get_json("/v1/models");
    let card = |id: &str| list["data"].as_array().expect("a list").iter().find(|card| card["id"] == id).cloned();
    let mine = card("mine").unwrap_or_else(|| panic!("{list}"));
    assert_eq!((&mine["parent"], &mine["root"]), (&json!("smollm2"), &json!("one")), "{mine}");
    assert!(card("stored").is_some(), "{list}");
    assert!(!list.to_string().contains("/tmp"), "folders of the server are not told: {list}");
    assert_eq!(server.get_json("/v1/models/smollm2:mine")["parent"], "smollm2");
    let tags = server.get_json("/api/tags");
    assert!(tags.to_string().contains("\"mine:latest\""), "{tags}");
    let (_, shown) = server.post("/api/show", "", &json!({ "model": "mine" }));
    assert_eq!(shown["details"]["parent_model"], "smollm2", "{shown}");
    assert!(shown["modelfile"].as_str().expect("text").contains("ADAPTER mine"), "{shown}");
    let numbered = server.get_json("/lora-adapters");
    assert_eq!(
        (&numbered[0]["id"], &numbered[0]["name"], &numbered[0]["path"]),
        (&json!(0), &json!("mine"), &json!("one"))
    );
}

fn check_unknown(server: &Server) {
    for change in [
        json!({ "model": "smollm2:nothing" }),
        json!({ "adapter": "nothing" }),
        json!({ "adapter": "../mine" }),
        json!({ "adapter": "/etc/passwd" }),
        json!({ "lora": [{ "id": 99, "scale": 1.0 }] }),
    ] {
        let (status, told) = ask(server, "", change.clone());
        assert_eq!((status, told["error"]["code"].as_str()), (404, Some("adapter_not_found")), "{change}: {told}");
        assert!(told["error"]["message"].as_str().expect("text").contains("mine"), "it names what is there: {told}");
    }
    let message =
        json!({ "model": "smollm2:nothing", "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 });
    let (status, told) = server.post("/v1/messages", "", &message);
    assert_eq!((status, told["error"]["type"].as_str()), (404, Some("not_found_error")), "{told}");
    let (status, told) = server.post("/api/chat", "", &message);
    assert!(status == 404 && told["error"].as_str().expect("text").contains("nothing"), "{told}");
    for (change, param) in [
        (json!({ "adapter": 7 }), "adapter"),
        (json!({ "adapter": "mine", "lora": [] }), "lora"),
        (json!({ "model": "mine", "adapter": "stored" }), "adapter"),
        (json!({ "lora": [{ "id": 0, "scale": 1e30 }] }), "lora[0].scale"),
        (json!({ "adapter": [{ "name": "mine", "weight": "much" }] }), "adapter"),
    ] {
        let (status, told) = ask(server, "", change.clone());
        assert_eq!((status, told["error"]["param"].as_str()), (400, Some(param)), "{change}: {told}");
    }
}

#[test]
fn operators_load_replace_scale_and_unload_while_answers_run() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let open = folder.path().join("open");
    let (one, two) = (random_adapter(&open, "one", 1), random_adapter(&open, "two", 2));
    let closed = random_adapter(&folder.path().join("closed"), "three", 3);
    let server = start(&home, &["smollm2", "--context", "2048", "--adapter-folder", text(&open)]);
    let operator = server.operator();
    let load = |name: &str, path: &Path, more: Value| {
        let mut body = json!({ "lora_name": name, "lora_path": path });
        more.as_object().expect("an object").iter().for_each(|(key, value)| body[key] = value.clone());
        let answer = server.post_and_read("/v1/load_lora_adapter", &operator, &body);
        let status: u16 = answer.split_whitespace().nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, answer.split_once("\r\n\r\n").expect("a body").1.to_owned())
    };
    let body = json!({ "lora_name": "a", "lora_path": text(&one) });
    assert_eq!(server.post("/v1/load_lora_adapter", "", &body).0, 403, "not for everybody");
    assert_eq!(load("a", &one, json!({})), (200, "Success: LoRA adapter 'a' added successfully.".to_owned()));
    let (status, told) = load("a", &two, json!({}));
    assert!(status == 400 && told.contains("has already been loaded"), "{told}");
    let outside = [closed.as_path(), Path::new("/etc/passwd"), &open.join("../closed/three"), Path::new("one")];
    for path in outside {
        let (status, told) = load("b", path, json!({}));
        assert!(status == 400 && told.contains("--adapter-folder"), "{}: {told}", path.display());
    }
    for name in ["", "smollm2", "a b", "../x", "other:a"] {
        assert!(matches!(load(name, &one, json!({})).0, 400 | 404 | 409), "{name}");
    }
    let first = answer(&server, "", json!({ "model": "a" }));

    // An answer that has begun ends with what it began with.
    let long = json!({ "model": "a", "messages": [{ "role": "user", "content": "Count." }], "temperature": 0,
                       "max_tokens": 150 });
    let whole =
        |long: &Value| server.post("/v1/chat/completions", "", long).1["choices"][0]["message"]["content"].clone();
    let expected = whole(&long);
    let streamed = {
        let mut streamed = long.clone();
        streamed["stream"] = json!(true);
        server.send("/v1/chat/completions", "", &streamed)
    };
    let mut streamed = streamed;
    let mut told = vec![0; 400];
    streamed.read_exact(&mut told).expect("it has begun");
    assert_eq!(load("a", &two, json!({ "load_inplace": true })).0, 200);
    let second = answer(&server, "", json!({ "model": "a" }));
    assert_ne!(first, second, "new requests get the new one");
    let unload = json!({ "lora_name": "a" });
    assert!(server.post_and_read("/v1/unload_lora_adapter", &operator, &unload).contains("removed successfully"));
    streamed.read_to_end(&mut told).expect("it ends properly");
    let pieces: String = String::from_utf8_lossy(&told)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert_eq!(json!(pieces), expected);
    assert_eq!(ask(&server, "", json!({ "model": "a" })).0, 404);
    assert_eq!(server.post("/v1/unload_lora_adapter", &operator, &unload).0, 404);

    // Scales of llama-server hold for requests that name nothing.
    let plain = answer(&server, "", json!({}));
    assert_eq!(load("b", &one, json!({})).0, 200);
    let number = server.get_json("/lora-adapters")[0]["id"].clone();
    let scale = |scale: f64| server.post("/lora-adapters", &operator, &json!([{ "id": number, "scale": scale }]));
    assert_eq!(scale(1.0), (200, json!({ "success": true })));
    assert_eq!(answer(&server, "", json!({})), first);
    assert_eq!(answer(&server, "", json!({ "lora": [] })), plain);
    assert_eq!(scale(0.0).0, 200);
    assert_eq!(answer(&server, "", json!({})), plain);
    assert_eq!(server.post("/lora-adapters", &operator, &json!([{ "id": 77, "scale": 1 }])).0, 404);
    assert_eq!(server.post("/lora-adapters", "", &json!([])).0, 403);
}

#[test]
fn tenants_see_their_own_adapters_and_those_of_all() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let (one, two) = (random_adapter(folder.path(), "one", 1), random_adapter(folder.path(), "two", 2));
    let key = |name: &str, more: &[&str]| {
        let added = printed_json(&home, &[&["keys", "add", name, "--json"], more].concat());
        format!("authorization: Bearer {}\r\n", added["key"].as_str().expect("a key"))
    };
    let acme = key("acme-admin", &["--tenant", "acme", "--scope", "admin"]);
    let acme_user = key("acme-user", &["--tenant", "acme"]);
    let other = key("other", &["--tenant", "other"]);
    let arguments = ["smollm2", "--context", "512", "--adapter-folder", text(folder.path())];
    let server = start(&home, &arguments);
    let load = |headers: &str, name: &str, path: &Path| {
        let body = json!({ "lora_name": name, "lora_path": path });
        server.post("/v1/load_lora_adapter", headers, &body).0
    };
    assert_eq!(load(&other, "theirs", &one), 403);
    assert_eq!(load(&acme, "theirs", &one), 200);
    assert_eq!(load(&server.operator(), "common", &two), 200);
    let list = |headers: &str| -> Value {
        let answer = server.get("/v1/models", headers);
        serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    };
    let (seen, hidden) = (list(&acme_user), list(&other));
    assert!(names(&seen).contains(&"theirs") && names(&seen).contains(&"common"), "{seen}");
    assert!(!names(&hidden).contains(&"theirs") && names(&hidden).contains(&"common"), "{hidden}");
    assert_eq!(ask(&server, &acme_user, json!({ "model": "theirs" })).0, 200);
    assert_eq!(ask(&server, &other, json!({ "model": "common" })).0, 200);
    for change in [json!({ "model": "smollm2:theirs" }), json!({ "lora": [{ "id": 0, "scale": 1 }] })] {
        let (status, told) = ask(&server, &other, change);
        assert!(status == 404 && !told["error"]["message"].as_str().expect("text").contains("theirs,"), "{told}");
    }
    // A name of its own, beside the same name of another.
    assert_eq!(load(&acme, "common", &one), 200);
    let (own, of_all) = (json!({ "model": "common" }), json!({ "model": "theirs" }));
    assert_eq!(answer(&server, &acme_user, own.clone()), answer(&server, &acme_user, of_all));
    assert_ne!(answer(&server, &acme_user, own.clone()), answer(&server, &other, own));
    let unload =
        |headers: &str, name: &str| server.post("/v1/unload_lora_adapter", headers, &json!({ "lora_name": name })).0;
    assert_eq!(unload(&acme, "common"), 200);
    assert_eq!(unload(&acme, "common"), 404, "what is for all is not theirs to unload");
    assert_eq!(unload(&server.operator(), "theirs"), 404);
}

#[test]
fn the_witness_log_and_sessions_say_which_adapter_answered() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let flag = format!("mine={}", text(&random_adapter(folder.path(), "one", 1)));
    let server = start(&home, &["smollm2", "--context", "512", "--adapter", &flag]);
    answer(&server, &server.operator(), json!({ "model": "mine", "session": "talk" }));
    let digest = server.get_json("/lora-adapters")[0]["digest"].as_str().expect("a digest").to_owned();
    let until = Instant::now() + Duration::from_secs(300);
    let entry = loop {
        let entry = server.get_json("/v1/witness")["data"][0].clone();
        if !entry.is_null() {
            break entry;
        }
        assert!(Instant::now() < until, "it is never written");
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(entry["adapter"], format!("mine@{digest}"), "{entry}");
    let sessions = server.get_json("/v1/sessions");
    assert_eq!(sessions["data"][0]["adapter"], format!("mine@{digest}"), "{sessions}");
}

#[test]
fn a_folder_of_adapters_is_served_and_what_is_none_is_left_out() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    for (name, seed) in [("one", 1), ("two", 2)] {
        random_adapter(folder.path(), name, seed);
    }
    let broken = folder.path().join("broken");
    std::fs::create_dir(&broken).expect("a folder");
    std::fs::write(broken.join("adapter_config.json"), "{}").expect("a file");
    let flag = format!("smollm2={}", text(folder.path()));
    let server = start(&home, &["smollm2", "--context", "512", "--adapters-from", &flag]);
    let list = server.get_json("/v1/models");
    assert!(
        ["one", "two"].iter().all(|name| names(&list).contains(name)) && !names(&list).contains(&"broken"),
        "{list}"
    );
    assert_ne!(answer(&server, "", json!({ "model": "one" })), answer(&server, "", json!({ "model": "smollm2:two" })));
    let numbers: Vec<Value> =
        server.get_json("/lora-adapters").as_array().expect("a list").iter().map(|one| one["name"].clone()).collect();
    assert_eq!(numbers, ["one", "two"], "numbered by name");
    let url = format!("http://{}", server.address);
    let bench = ["bench", "serve", &url, "--adapters", "-w", "batch", "--clients", "2", "-r", "1", "-n", "2", "--json"];
    let measured = printed_json(&home, &bench);
    assert_eq!((&measured["adapters"], &measured["runs"][0]["errors"]), (&json!(2), &json!(0)), "{measured}");
    let used = &server.get_json("/admin/models")["models"][0]["adapters"];
    assert!(used["hits"].as_u64().expect("a number") > 2, "requests named them: {used}");
    drop(server);
    for name in ["one", "two"] {
        std::fs::remove_dir_all(folder.path().join(name)).expect("it was there");
    }
    for (wrong, why) in
        [("/nowhere", "cannot be read"), (text(&broken), "no PEFT folders"), (text(folder.path()), "none of 1")]
    {
        let said = refused(&home, &["serve", "smollm2", "--port", "0", "--adapters-from", wrong]);
        assert!(said.contains(why), "{wrong}: {said}");
    }
}

#[test]
fn memory_for_adapters_is_taken_from_kv_caches_once_there_are_some() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let one = random_adapter(folder.path(), "one", 1);
    let limits = ["--context", "1024", "--sequences", "64", "--memory", "840M", "--adapter-memory", "200M"];
    let server = start(&home, &[&["smollm2", "--adapter-folder", text(folder.path())], &limits[..]].concat());
    let memory = || {
        let memory = server.get_json("/admin/models")["memory"].clone();
        let part = memory["parts"].as_array().expect("a list").iter().find(|part| part["part"] == "adapters").cloned();
        let adapters = part.and_then(|part| part["max_bytes"].as_u64()).expect("a number");
        let of_model = |key: &str| memory["models"][0][key].as_u64().expect("a number");
        let parts = memory["parts"].as_array().expect("a list").iter().map(|part| part["max_bytes"].as_u64());
        let parts: u64 = parts.map(|bytes| bytes.expect("a number")).sum();
        let [kv, buffers] = ["kv_bytes", "adapter_buffer_bytes"].map(of_model);
        let all = parts + of_model("weights_bytes") + of_model("working_bytes") + kv + buffers;
        assert!(all <= memory["budget_bytes"].as_u64().expect("a number"), "{memory}");
        (kv, adapters, buffers)
    };
    let (kv_before, adapters, buffers) = memory();
    assert_eq!((adapters, buffers), (0, 0));
    let load = json!({ "lora_name": "a", "lora_path": text(&one) });
    assert!(server.post_and_read("/v1/load_lora_adapter", &server.operator(), &load).contains("added successfully"));
    let (kv, adapters, buffers) = memory();
    assert_eq!(adapters, 200 << 20);
    assert!(buffers > 1 << 20, "inputs that are not quantized: {buffers}");
    assert!(kv < kv_before, "{kv} of {kv_before}");
    answer(&server, "", json!({ "model": "a" }));
    let shown = server.get_json("/admin/models")["models"][0]["adapters"].clone();
    let number = |key: &str| shown[key].as_u64().expect("a number");
    assert!(number("buffer_bytes") >= buffers && number("hot_bytes") > 1 << 20, "{shown}");
    let ps = printed(&home, &["ps", "--url", &format!("http://{}", server.address)]);
    assert!(ps.contains("work with adapters"), "{ps}");
}

#[test]
fn switching_to_an_activated_adapter_keeps_the_warm_prefix_of_the_model() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let told = printed_json(&home, &["tokenize", "smollm2", "<|im_start|>assistant\n", "--special", "--json"]);
    let tokens: Vec<u64> =
        told["tokens"].as_array().expect("a list").iter().filter_map(|token| token["id"].as_u64()).collect();
    let settings = json!({ "alora_invocation_tokens": tokens });
    let activated = random_adapter_with(folder.path(), "activated", 1, &settings);
    let flags = [format!("activated={}", text(&activated)), {
        let plain = random_adapter(folder.path(), "plain", 1);
        format!("plain={}", text(&plain))
    }];
    let server = start(&home, &["smollm2", "--context", "1024", "--adapter", &flags[0], "--adapter", &flags[1]]);
    let question = format!("{}\n\n{QUESTION}", &include_str!("../data/essays.txt")[..1000]);
    let with = |model: &str| {
        let messages = json!([{ "role": "user", "content": question }]);
        let (status, told) = ask(&server, "", json!({ "model": model, "messages": messages }));
        assert_eq!(status, 200, "{told}");
        let usage = &told["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        let prompt = usage["prompt_tokens"].as_u64().expect("a number");
        (told["choices"][0]["message"]["content"].clone(), prompt, cached)
    };
    let (base, prompt, cached) = with("smollm2");
    assert!(prompt > 200 && cached < 32, "{prompt}, {cached}: a system message at most");
    let warm = with("smollm2").2;
    assert_eq!(warm, prompt - 1, "all but the token whose logits are wanted");
    let (adapted, _, cached) = with("activated");
    assert_eq!(cached, prompt - tokens.len() as u64, "all of the model's before the adapter begins");
    assert_ne!(adapted, base, "the adapter shows");
    assert_eq!(with("activated"), (adapted, prompt, prompt - 1), "and then its own");
    assert_eq!(with("plain").2, 0, "an adapter that changes all tokens has nothing");
    assert_eq!(with("smollm2"), (base, prompt, warm), "the model's own pages are as they were");
}

#[test]
fn ollamas_create_makes_a_model_with_an_adapter() {
    let (home, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let shared = smollm2();
    std::fs::create_dir(home.path().join("models")).expect("a folder");
    let link = home.path().join("models/smollm2");
    std::os::unix::fs::symlink(shared.parent().expect("its folder"), link).expect("a link");
    printed(&home, &["adapters", "pull", text(&random_adapter(folder.path(), "one", 1)), "--name", "pirate"]);
    let server = start(&home, &["smollm2", "--context", "512"]);
    let operator = server.operator();
    let expected = answer(&server, "", json!({ "model": "smollm2:pirate" }));
    let create = |body: Value| server.post("/api/create", &operator, &body);
    let made = create(json!({ "model": "arr", "from": "smollm2", "adapters": { "pirate": "" }, "stream": false }));
    assert_eq!(made.0, 200, "{}", made.1);
    assert_eq!(answer(&server, "", json!({ "model": "arr" })), expected);
    let file = "FROM smollm2\nADAPTER pirate";
    assert_eq!(create(json!({ "model": "yarr", "modelfile": file, "stream": false })).0, 200);
    assert_eq!(answer(&server, "", json!({ "model": "yarr" })), expected);
    let (_, shown) = server.post("/api/show", "", &json!({ "model": "yarr" }));
    assert!(shown["modelfile"].as_str().expect("text").contains("ADAPTER pirate"), "{shown}");
    for adapters in [json!({ "nothing": "" }), json!({ "x": "sha256:00" }), json!({ "../x": "" })] {
        let (status, told) = create(json!({ "model": "no", "from": "smollm2", "adapters": adapters, "stream": false }));
        assert_eq!(status, 404, "{told}");
    }
}
