//! Ollama's native API of the real program with the real model.

use crate::support;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::server::{Server, ruvllm, start, start_command};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A home folder whose store can be changed: the models are links.
fn home() -> TempDir {
    support::minilm();
    let file = support::smollm2();
    let shared = file.parent().and_then(Path::parent).expect("the folder of all models");
    let home = tempfile::tempdir().expect("a folder");
    fs::create_dir(home.path().join("models")).expect("a folder");
    for name in ["smollm2", "minilm"] {
        std::os::unix::fs::symlink(shared.join(name), home.path().join("models").join(name)).expect("a link");
    }
    home
}

/// Takes Ollama's place on any free port. Models are loaded by requests, and so can be unloaded.
fn start_in_its_place(home: &TempDir, arguments: &[&str]) -> Server {
    let mut command = ruvllm(home);
    command.args(["serve", "--port", "0", "--ollama", "--context", "1024"]).args(arguments);
    command.env("OLLAMA_HOST", "127.0.0.1:0");
    start_command(command)
}

fn ok(server: &Server, path: &str, body: Value) -> Value {
    let (status, answer) = server.post(path, "", &body);
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

/// The status, and what is told as an error.
fn error(server: &Server, path: &str, body: Value) -> (u16, String) {
    let (status, answer) = server.post(path, "", &body);
    assert_eq!(answer.as_object().map(serde_json::Map::len), Some(1), "{path} {body}: {answer}");
    (status, answer["error"].as_str().expect("a text").to_owned())
}

fn get(server: &Server, path: &str) -> Value {
    let answer = server.get(path, "");
    serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
}

/// The lines of a stream, and its headers.
fn lines(server: &Server, path: &str, body: Value) -> (String, Vec<Value>) {
    let mut reader = BufReader::new(server.send(path, "", &body));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).expect("text") > 0, "{head}");
    }
    let mut text = String::new();
    loop {
        let mut size = String::new();
        reader.read_line(&mut size).expect("the size of a chunk");
        let size = usize::from_str_radix(size.trim(), 16).expect("a size");
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).expect("a chunk");
        if size == 0 {
            break;
        }
        text.push_str(std::str::from_utf8(&chunk[..size]).expect("text"));
    }
    (head, text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect())
}

fn delete(server: &Server, name: &str) -> u16 {
    let mut stream = server.connect();
    let body = json!({ "model": name }).to_string();
    let length = body.len();
    write!(
        stream,
        "DELETE /api/delete HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer[9..12].parse().expect("a status")
}

fn question() -> Value {
    json!({ "model": "smollm2", "messages": [{ "role": "user", "content": "Name three colours." }],
            "options": { "temperature": 0, "num_predict": 12 } })
}

#[test]
fn answers_come_whole_or_in_lines_with_their_times() {
    let home = home();
    let server = start_in_its_place(&home, &[]);
    assert!(server.get("/", "").ends_with("Ollama is running"));
    let version = get(&server, "/api/version")["version"].as_str().expect("a version").to_owned();
    assert_eq!(version.split('.').filter_map(|part| part.parse::<u32>().ok()).count(), 3, "{version}");
    let mut body = question();
    body["stream"] = json!(false);
    let whole = ok(&server, "/api/chat", body);
    assert_eq!(
        (&whole["done"], &whole["done_reason"], &whole["eval_count"]),
        (&json!(true), &json!("length"), &json!(12))
    );
    for field in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count"] {
        assert!(whole[field].as_u64().expect(field) > 0, "{field}: {whole}");
    }
    assert!(whole["total_duration"].as_u64() > whole["eval_duration"].as_u64(), "{whole}");
    let (head, streamed) = lines(&server, "/api/chat", question());
    assert!(head.contains("content-type: application/x-ndjson"), "{head}");
    let text: String = streamed.iter().map(|line| line["message"]["content"].as_str().expect("a text")).collect();
    assert_eq!(text, whole["message"]["content"].as_str().expect("a text"));
    let done = streamed.iter().map(|line| line["done"] == true).collect::<Vec<_>>();
    assert!(done.len() > 3 && done.iter().rposition(|done| !done) == Some(done.len() - 2), "{done:?}");

    let prompt = json!({ "model": "smollm2:latest", "prompt": "Name three colours.", "stream": false,
                         "options": { "temperature": 0, "num_predict": 12 } });
    let answer = ok(&server, "/api/generate", prompt.clone());
    assert_eq!(answer["response"], whole["message"]["content"]);
    let context = answer["context"].as_array().expect("tokens").len() as u64;
    assert_eq!(context, answer["prompt_eval_count"].as_u64().unwrap() + 12);
    let mut next = prompt.clone();
    next["context"] = answer["context"].clone();
    assert!(ok(&server, "/api/generate", next)["prompt_eval_count"].as_u64() > Some(context));
    let (_, streamed) = lines(
        &server,
        "/api/generate",
        json!({ "model": "smollm2", "prompt": "One, two,", "raw": true,
                                                               "options": { "num_predict": 4 } }),
    );
    assert!(streamed.last().unwrap().get("context").is_none() && streamed.last().unwrap()["eval_count"] == 4);

    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 3, "maximum": 9 } }, "required": ["n"] });
    let mut body = question();
    (body["stream"], body["format"], body["options"]["num_predict"]) = (json!(false), schema, json!(64));
    let text = ok(&server, "/api/chat", body)["message"]["content"].as_str().unwrap().to_owned();
    assert!(
        (3..=9).contains(&serde_json::from_str::<Value>(&text).expect("JSON")["n"].as_i64().expect("a number")),
        "{text}"
    );
}

#[test]
fn tools_are_called_and_their_results_are_read() {
    let home = home();
    let server = start_in_its_place(&home, &[]);
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let tool = json!({ "type": "function", "function": { "name": "get_weather", "parameters": parameters } });
    // The answer is a call or has the format. Even a small model does not find that it should say null.
    let mut body = json!({ "model": "smollm2", "tools": [tool], "format": { "type": "null" }, "stream": false,
                           "messages": [{ "role": "user", "content": "What is the weather in Paris?" }],
                           "options": { "temperature": 0, "num_predict": 80 } });
    let whole = ok(&server, "/api/chat", body.clone());
    let call = &whole["message"]["tool_calls"][0]["function"];
    assert_eq!((&call["name"], call["arguments"]["city"].is_string()), (&json!("get_weather"), true), "{whole}");
    body["stream"] = json!(true);
    let (_, streamed) = lines(&server, "/api/chat", body.clone());
    let calls: Vec<&Value> = streamed.iter().filter_map(|line| line["message"].get("tool_calls")).collect();
    assert_eq!((calls.len(), &calls[0][0]["function"]), (1, call), "a call comes whole");
    let result = json!({ "role": "tool", "tool_name": "get_weather", "content": "It rains." });
    let messages = body["messages"].as_array_mut().expect("messages");
    messages.extend([whole["message"].clone(), result]);
    (body["format"], body["stream"], body["options"]["num_predict"]) = (Value::Null, json!(false), json!(8));
    assert_eq!(ok(&server, "/api/chat", body)["done"], true);
}

#[test]
fn models_are_listed_shown_loaded_and_unloaded() {
    let home = home();
    let server = start_in_its_place(&home, &["--alias", "an-alias=smollm2"]);
    let names = |list: Value| -> Vec<String> {
        list["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(get(&server, "/api/tags")), ["an-alias:latest", "minilm:latest", "smollm2:latest"]);
    assert_eq!(names(get(&server, "/api/ps")), [""; 0]);
    let shown = ok(&server, "/api/show", json!({ "model": "smollm2" }));
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert_eq!(shown["model_info"]["general.architecture"], "llama");
    assert_eq!(
        (&shown["model_info"]["llama.context_length"], &shown["details"]["quantization_level"]),
        (&json!(8192), &json!("Q4_1"))
    );
    assert!(shown["template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(ok(&server, "/api/show", json!({ "name": "minilm" }))["capabilities"], json!(["embedding"]));

    let loaded = ok(&server, "/api/generate", json!({ "model": "an-alias", "keep_alive": "1h" }));
    assert_eq!((&loaded["done_reason"], &loaded["response"]), (&json!("load"), &json!("")));
    let ps = get(&server, "/api/ps");
    assert_eq!(
        (names(ps.clone()), &ps["models"][0]["context_length"]),
        (vec!["smollm2:latest".to_owned()], &json!(1024))
    );
    let unloaded = ok(&server, "/api/chat", json!({ "model": "smollm2", "messages": [], "keep_alive": 0 }));
    assert_eq!(unloaded["done_reason"], "unload");
    assert_eq!(names(get(&server, "/api/ps")), [""; 0]);
    // After an answer it takes a moment.
    let mut body = question();
    (body["keep_alive"], body["stream"]) = (json!("0s"), json!(false));
    ok(&server, "/api/chat", body);
    let waiting = Instant::now();
    while !names(get(&server, "/api/ps")).is_empty() {
        assert!(waiting.elapsed() < Duration::from_secs(60), "it is still loaded");
        std::thread::sleep(Duration::from_millis(20));
    }
    // OpenAI's API has the same.
    let mut body = json!({ "model": "smollm2", "max_tokens": 2, "messages": [{ "role": "user", "content": "Hi" }] });
    body["keep_alive"] = json!("1h");
    ok(&server, "/v1/chat/completions", body.clone());
    assert_eq!(names(get(&server, "/api/ps")), ["smollm2:latest"]);
    body["keep_alive"] = json!(0);
    ok(&server, "/v1/chat/completions", body);
    let waiting = Instant::now();
    while !names(get(&server, "/api/ps")).is_empty() {
        assert!(waiting.elapsed() < Duration::from_secs(60), "it is still loaded");
        std::thread::sleep(Duration::from_millis(20));
    }
    let embedded = ok(&server, "/api/embed", json!({ "model": "minilm", "input": ["a", "b"] }));
    assert_eq!(
        (embedded["embeddings"].as_array().unwrap().len(), embedded["embeddings"][1].as_array().unwrap().len()),
        (2, 384)
    );
    let old = ok(&server, "/api/embeddings", json!({ "model": "minilm", "prompt": "b" }));
    assert_eq!(old["embedding"], embedded["embeddings"][1]);
}

#[test]
fn models_are_made_from_others_and_share_their_file() {
    let home = home();
    let server = start_in_its_place(&home, &[]);
    let (_, said) = lines(
        &server,
        "/api/create",
        json!({ "model": "parrot", "from": "smollm2:latest", "system": "Say only: polly",
        "parameters": { "temperature": 0, "num_predict": 5, "stop": ["zzz"] }, "license": "MIT",
        "parameters": { "temperature": 0, "num_predict": 2, "stop": ["zzz"] }, "license": "MIT",
        "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "polly" }] }),
    );
    assert_eq!(said.last().unwrap(), &json!({ "status": "success" }));
    let answer = ok(&server, "/api/generate", json!({ "model": "parrot", "prompt": "Hello", "stream": false }));
    assert_eq!(answer["eval_count"], 2, "its parameters are used: {answer}");
    let body = json!({ "model": "parrot", "messages": [{ "role": "user", "content": "Hello" }] });
    let (_, by_openai) = server.post("/v1/chat/completions", "", &body);
    assert_eq!(by_openai["choices"][0]["message"]["content"], answer["response"], "and by every API");
    let mut run = ruvllm(&home);
    run.args(["run", "parrot", "Hello", "--context", "1024", "--json"]);
    let by_run: Value = serde_json::from_slice(&run.output().unwrap().stdout).expect("JSON");
    assert_eq!(by_run["text"], answer["response"], "and by the command line: {by_run}");
    let shown = ok(&server, "/api/show", json!({ "model": "parrot" }));
    assert_eq!((&shown["details"]["parent_model"], &shown["license"]), (&json!("smollm2"), &json!("MIT")));
    assert!(shown["modelfile"].as_str().unwrap().starts_with("FROM smollm2\nSYSTEM"), "{shown}");
    assert_eq!(get(&server, "/api/ps")["models"].as_array().unwrap().len(), 1, "both are one loaded model");
    assert_eq!(
        server.post_and_read("/api/copy", "", &json!({ "source": "parrot", "destination": "polly" }))[9..12],
        *"200"
    );
    let again = ok(&server, "/api/generate", json!({ "model": "polly", "prompt": "Hello", "stream": false }));
    assert_eq!(again["response"], answer["response"]);
    assert!(
        ruvllm(&home).args(["list", "--json"]).output().unwrap().stdout.windows(7).any(|part| part == b"\"polly\"")
    );
    let unknown = json!({ "source": "none", "destination": "x" });
    assert_eq!(error(&server, "/api/copy", unknown).0, 404);
    assert_eq!(error(&server, "/api/copy", json!({ "source": "polly", "destination": "smollm2" })).0, 409);
    assert_eq!((delete(&server, "polly"), delete(&server, "polly"), delete(&server, "none")), (200, 404, 404));
    assert_eq!(delete(&server, "smollm2"), 409, "parrot is made from it");
    assert_eq!(delete(&server, "parrot"), 200);
    for (name, value, what) in [
        ("from", json!("/etc/passwd"), "not found"),
        ("from", json!("../../smollm2"), "not found"),
        ("from", json!("~/.ruvllm/local_token"), "not found"),
        ("template", json!("{{ .Prompt }}"), "template is not supported"),
        ("adapters", json!({ "a": "sha256:0" }), "no adapter is called"),
        ("parameters", json!({ "num_ctx": -1 }), "num_ctx"),
        ("model", json!("../escape"), "cannot name a model"),
    ] {
        let mut body = json!({ "model": "new", "from": "smollm2" });
        body[name] = value.clone();
        let (status, said) = error(&server, "/api/create", body);
        assert!((400..=404).contains(&status) && said.contains(what), "{name} {value}: {status} {said}");
    }
    let (_, pulled) = lines(&server, "/api/pull", json!({ "model": "smollm2" }));
    assert_eq!(pulled.last().unwrap(), &json!({ "status": "success" }));
    for (name, status) in
        [("no-such-model", 404), ("../../etc/passwd", 400), ("/etc/passwd", 400), ("hf:a", 400), ("", 400)]
    {
        assert_eq!(error(&server, "/api/pull", json!({ "model": name })).0, status, "{name}");
    }
}

#[test]
fn only_local_programs_change_the_store_and_only_if_the_operator_says_so() {
    let home = home();
    let server = start(&home, &["--context", "512"]);
    let requests = [
        ("/api/create", json!({ "model": "x", "from": "smollm2" })),
        ("/api/copy", json!({ "source": "smollm2", "destination": "x" })),
        ("/api/pull", json!({ "model": "smollm2" })),
    ];
    for (path, body) in &requests {
        let (status, said) = error(&server, path, body.clone());
        assert!(status == 403 && said.contains("--ollama"), "{path}: {status} {said}");
    }
    assert_eq!(delete(&server, "smollm2"), 403);
    let (status, _) = server.post("/api/create", &server.operator(), &requests[0].1);
    assert_eq!(status, 200, "the operator may");
    drop(server);
    let server = start_in_its_place(&home, &[]);
    for header in ["origin: https://evil.example\r\n", "x-forwarded-for: 1.2.3.4\r\norigin: http://localhost:3000\r\n"]
    {
        let (status, _) = server.post("/api/copy", header, &requests[1].1);
        assert_eq!(status, 403, "a web page: {header}");
    }
    let mut add = ruvllm(&home);
    let key = String::from_utf8(add.args(["keys", "add", "ann"]).output().unwrap().stdout).unwrap();
    let key = format!("authorization: Bearer {}\r\n", key.trim());
    for (path, body) in &requests {
        assert_eq!(server.post(path, "", body).0, 401, "{path}");
        assert_eq!(server.post(path, &key, body).0, 403, "{path}: a tenant's key is not enough");
    }
    let mut body = question();
    (body["keep_alive"], body["stream"]) = (json!(0), json!(false));
    let answer = server.post_and_read("/api/chat", &key, &body);
    assert!(answer.contains("x-ruvllm-ignored: keep_alive"), "{answer}");
}

#[test]
fn wrong_requests_are_told_and_nothing_is_lost() {
    let home = home();
    let server = start_in_its_place(&home, &[]);
    let with = |field: &str, value: Value| {
        let mut body = question();
        body[field] = value;
        body
    };
    for (body, what) in [
        (with("options", json!({ "num_ctx": 1_i64 << 60 })), "options.num_ctx"),
        (with("options", json!({ "num_ctx": -5 })), "options.num_ctx"),
        (with("options", json!({ "temperature": -1 })), "temperature"),
        (with("options", json!({ "top_p": 7 })), "top_p"),
        (with("options", json!([])), "options"),
        (with("format", json!("yaml")), "format"),
        (with("format", json!({ "type": "nonsense" })), "format"),
        (with("think", json!("very")), "think"),
        (with("keep_alive", json!("soon")), "keep_alive"),
        (with("messages", json!([{ "role": "user", "content": "x", "images": ["aGk="] }])), "images"),
        (with("messages", json!([{ "role": "user", "content": 7 }])), "messages[0].content"),
        (with("tools", json!([{ "type": "web", "function": { "name": "f" } }])), "tools[0].type"),
        (with("messages", json!([{ "role": "user", "content": "word ".repeat(5000) }])), "maximum context length"),
    ] {
        let (status, said) = error(&server, "/api/chat", body.clone());
        assert!(status == 400 && said.contains(what), "{body}: {status} {said}");
    }
    assert_eq!(
        error(&server, "/api/chat", with("model", json!("none"))),
        (404, error(&server, "/api/chat", with("model", json!("none"))).1)
    );
    assert!(error(&server, "/api/show", json!({ "model": "none" })).1.contains("not found"));
    assert_eq!(error(&server, "/api/nothing", json!({})).0, 404);
    for (field, value) in [("suffix", json!("x")), ("images", json!(["aGk="])), ("template", json!("x"))] {
        let mut body = json!({ "model": "smollm2", "prompt": "Hi" });
        body[field] = value;
        let (status, said) = error(&server, "/api/generate", body);
        assert!(status == 400 && said.contains(field), "{said}");
    }
    let mut body = with("options", json!({ "num_ctx": 8192, "num_gpu": 1, "num_predict": 2 }));
    body["stream"] = json!(false);
    let answer = server.post_and_read("/api/chat", "", &body);
    assert!(answer.contains("x-ruvllm-ignored: options.num_gpu, options.num_ctx"), "{answer}");
    // Those who hang up midway leave nothing behind.
    for _ in 0..3 {
        let mut stream: TcpStream = server.send("/api/chat", "", &with("options", json!({ "num_predict": 900 })));
        stream.read_exact(&mut [0; 256]).expect("the beginning");
    }
    let waiting = Instant::now();
    while server.get_json("/admin/models")["models"][0]["running"] != 0 {
        assert!(waiting.elapsed() < Duration::from_secs(60), "they still run");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn models_of_an_installation_are_run_in_place() {
    let home = home();
    let ollama = tempfile::tempdir().expect("a folder");
    let (blobs, manifests) =
        (ollama.path().join("blobs"), ollama.path().join("manifests/registry.ollama.ai/library/tiny"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&manifests).unwrap();
    let layer = |kind: &str, bytes: &[u8]| {
        let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(blobs.join(format!("sha256-{digest}")), bytes).unwrap();
        json!({ "mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": format!("sha256:{digest}"), "size": bytes.len() })
    };
    let layers = [
        layer("model", &fs::read(support::smollm2()).unwrap()),
        layer("params", br#"{"num_predict": 3, "temperature": 0}"#),
        layer("system", b"Be brief."),
        layer("template", b"{{ .System }} {{ .Prompt }}"),
    ];
    fs::write(manifests.join("135m"), json!({ "schemaVersion": 2, "layers": layers }).to_string()).unwrap();
    fs::write(manifests.join("broken"), "{}").unwrap();
    let mut command = ruvllm(&home);
    command.args(["serve", "--port", "0", "--context", "512"]).env("OLLAMA_MODELS", ollama.path());
    let server = start_command(command);
    let answer = ok(&server, "/api/generate", json!({ "model": "tiny:135m", "prompt": "Hello", "stream": false }));
    assert_eq!((&answer["eval_count"], &answer["model"]), (&json!(3), &json!("tiny:135m")));
    let shown = ok(&server, "/api/show", json!({ "model": "tiny:135m" }));
    assert_eq!((&shown["system"], &shown["details"]["family"]), (&json!("Be brief."), &json!("llama")));
    assert!(get(&server, "/v1/models").to_string().contains("tiny:135m"));
    let mut list = ruvllm(&home);
    let listed = list.arg("list").env("OLLAMA_MODELS", ollama.path()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("tiny:135m") && listed.contains("unusable"), "{listed}");
    let (status, said) =
        server.post("/api/copy", &server.operator(), &json!({ "source": "tiny:135m", "destination": "mine" }));
    assert_eq!(status, 200, "{said}");
}
