//! Adapters that are loaded, replaced and unloaded at random while answers run: no request fails, each answer is the one that its
//! adapter gives alone, and memory stays within its budget.

use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::peft::random_adapter;
use crate::server::{Server, start};
use crate::support::home;
use serde_json::{Value, json};

const STREAMS: usize = 8;
/// Names that requests use, and adapters that they can mean: more than there is memory for.
const NAMES: usize = 16;
/// Enough for those that all streams hold.
const MEMORY: &str = "16M";
const CHANGES: usize = 40;

/// What a name means, and has meant.
#[derive(Default)]
struct Named {
    /// Held by whoever begins a request, so that the name is not unloaded before the server knows it; `None` is unloaded.
    content: RwLock<Option<usize>>,
    versions: Mutex<Versions>,
}

/// All contents of a name in their order. Those before `settled` are not used for new requests any more.
#[derive(Default)]
struct Versions {
    all: Vec<usize>,
    settled: usize,
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Notes that its thread has panicked.
struct SetOnPanic<'a>(&'a AtomicBool);

impl Drop for SetOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn request(model: &str, stream: bool) -> Value {
    json!({ "model": model, "prompt": "The keeper counted the ships and", "max_tokens": 8, "temperature": 0,
            "stream": stream })
}

/// The text of an answer that is streamed. Calls `begun` when the server has chosen what answers.
fn streamed(server: &Server, model: &str, begun: impl FnOnce()) -> String {
    let mut stream = server.send("/v1/completions", "", &request(model, true));
    let mut told = vec![0; 16];
    stream.read_exact(&mut told).expect("an answer");
    begun();
    stream.read_to_end(&mut told).expect("it ends properly");
    let told = String::from_utf8(told).expect("text");
    assert!(told.starts_with("HTTP/1.1 200"), "{model}: {told}");
    let events = told.lines().filter_map(|line| line.strip_prefix("data: ")?.parse::<Value>().ok());
    events.filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_owned())).collect()
}

fn load(server: &Server, name: &str, path: &PathBuf) {
    let body = json!({ "lora_name": name, "lora_path": path, "load_inplace": true });
    let told = server.post_and_read("/v1/load_lora_adapter", &server.operator(), &body);
    assert!(told.contains("added successfully"), "{told}");
}

fn unload(server: &Server, name: &str) {
    let told = server.post_and_read("/v1/unload_lora_adapter", &server.operator(), &json!({ "lora_name": name }));
    assert!(told.contains("removed successfully"), "{told}");
}

/// Loads, replaces or unloads what a name means.
fn change(server: &Server, contents: &[PathBuf], name: usize, named: &Named, random: &mut Random) {
    let (label, new) = (format!("name-{name}"), random.below(NAMES));
    let is_loaded = named.content.read().expect("sound").is_some();
    if is_loaded && random.below(3) > 0 {
        // Requests go on meanwhile, and get the old or the new one.
        named.versions.lock().expect("sound").all.push(new);
        load(server, &label, &contents[new]);
        let mut versions = named.versions.lock().expect("sound");
        versions.settled = versions.all.len() - 1;
        return;
    }
    let mut content = named.content.write().expect("sound");
    *content = match is_loaded {
        true => {
            unload(server, &label);
            None
        }
        false => {
            load(server, &label, &contents[new]);
            let mut versions = named.versions.lock().expect("sound");
            versions.all.push(new);
            versions.settled = versions.all.len() - 1;
            Some(new)
        }
    };
}

/// Asks a name, if it means something, and checks that the answer is that of one of its versions at that time.
fn check_one(server: &Server, name: usize, named: &Named, expected: &[String]) -> bool {
    let content = named.content.read().expect("sound");
    if content.is_none() {
        return false;
    }
    let first = named.versions.lock().expect("sound").settled;
    let mut last = 0;
    let got = streamed(server, &format!("name-{name}"), || {
        last = named.versions.lock().expect("sound").all.len();
        drop(content);
    });
    let versions = named.versions.lock().expect("sound").all[first..last].to_vec();
    assert!(versions.iter().any(|version| expected[*version] == got), "{got:?} is of none of {versions:?}");
    true
}

fn check_memory(server: &Server) -> Value {
    let adapters = server.get_json("/admin/models")["models"][0]["adapters"].clone();
    let number = |key: &str| adapters[key].as_u64().expect("a number");
    assert!(number("hot_bytes") <= number("budget_bytes"), "{adapters}");
    adapters
}

#[test]
fn random_changes_under_eight_streams_fail_no_request_and_change_no_token() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    // As many as one has time for: a thousand take minutes.
    let changes = std::env::var("RUVLLM_ADAPTER_CHANGES").map_or(CHANGES, |count| count.parse().expect("a count"));
    let contents: Vec<PathBuf> = (0..NAMES)
        .map(|content| random_adapter(folder.path(), &format!("content-{content}"), content as u64 + 1))
        .collect();
    let folder = folder.path().to_str().expect("a plain path");
    let mut arguments = vec!["smollm2", "--context", "512", "--adapter-folder", folder, "--adapter-memory", MEMORY];
    // Nobody reads its log, which would keep it waiting.
    arguments.extend(["--log-level", "warn"]);
    let server = start(&home, &arguments);
    let names: Vec<Named> = (0..NAMES).map(|_| Named::default()).collect();
    let ask_alone = |(name, named): (usize, &Named)| {
        let label = format!("name-{name}");
        load(&server, &label, &contents[name]);
        *named.content.write().expect("sound") = Some(name);
        named.versions.lock().expect("sound").all.push(name);
        let (status, told) = server.post("/v1/completions", "", &request(&label, false));
        assert_eq!(status, 200, "{told}");
        told["choices"][0]["text"].as_str().expect("a text").to_owned()
    };
    let expected: Vec<String> = names.iter().enumerate().map(ask_alone).collect();
    let distinct: std::collections::BTreeSet<&String> = expected.iter().collect();
    assert!(distinct.len() > NAMES / 2, "adapters show: {expected:?}");
    let adapters = check_memory(&server);
    assert!(adapters["evictions"].as_u64().expect("a number") > 0, "not all fit into memory: {adapters}");
    let (is_over, has_failed, answers) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (server, names, expected, answers) = (&server, &names, &expected, &answers);
        let (is_over, has_failed) = (&is_over, &has_failed);
        for stream in 0..STREAMS {
            scope.spawn(move || {
                let mut random = Random(stream as u64 + 100);
                let _failed = SetOnPanic(has_failed);
                while !is_over.load(Ordering::Relaxed) {
                    let name = random.below(NAMES);
                    if check_one(server, name, &names[name], expected) {
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut random = Random(7);
        // A panic here must end the streams too.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for step in 0..changes {
                let name = random.below(NAMES);
                change(server, &contents, name, &names[name], &mut random);
                if step % 8 == 0 {
                    check_memory(server);
                }
                // An answer to each change, so that many run meanwhile; a stream that has failed ends the wait.
                while answers.load(Ordering::Relaxed) <= step && !has_failed.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    println!("{} answers under {changes} changes", answers.load(Ordering::Relaxed));
    for (name, _) in names.iter().enumerate().filter(|(_, named)| named.content.read().expect("sound").is_some()) {
        unload(&server, &format!("name-{name}"));
    }
    // The server notices a little later that its last client has read everything.
    let until = Instant::now() + Duration::from_secs(60);
    let adapters = loop {
        let adapters = check_memory(&server);
        if adapters["hot_bytes"] == 0 || Instant::now() > until {
            break adapters;
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!((&adapters["registered"], &adapters["hot_bytes"]), (&json!(0), &json!(0)), "{adapters}");
}
