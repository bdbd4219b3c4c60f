//! Learning from feedback with the real program and the real model: refused, promoted, served, rolled back, forgotten.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::server::{Server, ruvllm, start};
use crate::support::home;
use ruvllm_learning::{DocumentKey, Part, part_of};
use serde_json::{Value, json};
use tempfile::TempDir;

/// What is asked, and what the answer is.
const CAPITALS: [(&str, &str); 40] = [
    ("France", "Paris"),
    ("Spain", "Madrid"),
    ("Italy", "Rome"),
    ("Germany", "Berlin"),
    ("Japan", "Tokyo"),
    ("China", "Beijing"),
    ("Russia", "Moscow"),
    ("Egypt", "Cairo"),
    ("Greece", "Athens"),
    ("Poland", "Warsaw"),
    ("Norway", "Oslo"),
    ("Sweden", "Stockholm"),
    ("Finland", "Helsinki"),
    ("Denmark", "Copenhagen"),
    ("Cuba", "Havana"),
    ("Peru", "Lima"),
    ("Chile", "Santiago"),
    ("Canada", "Ottawa"),
    ("Kenya", "Nairobi"),
    ("Turkey", "Ankara"),
    ("Austria", "Vienna"),
    ("Hungary", "Budapest"),
    ("Ireland", "Dublin"),
    ("Portugal", "Lisbon"),
    ("Iran", "Tehran"),
    ("Iraq", "Baghdad"),
    ("India", "New Delhi"),
    ("Thailand", "Bangkok"),
    ("Vietnam", "Hanoi"),
    ("Ukraine", "Kyiv"),
    ("Romania", "Bucharest"),
    ("Serbia", "Belgrade"),
    ("Croatia", "Zagreb"),
    ("Belgium", "Brussels"),
    ("Argentina", "Buenos Aires"),
    ("Colombia", "Bogota"),
    ("Venezuela", "Caracas"),
    ("Ecuador", "Quito"),
    ("Mexico", "Mexico City"),
    ("Australia", "Canberra"),
];

/// As many of them as are needed, and a few more: training costs.
fn lessons() -> Vec<(&'static str, &'static str)> {
    let lessons = lessons_of(14, 7);
    assert_eq!(lessons.len(), 23, "there are enough of each part");
    lessons
}

fn lessons_of(training: usize, held_out: usize) -> Vec<(&'static str, &'static str)> {
    let mut left = [(Part::Training, training), (Part::Validation, 2), (Part::HeldOut, held_out)];
    let mut is_wanted = |country: &str| {
        let part = part_of(DocumentKey::of(&question(country)));
        left.iter_mut().find(|(of, count)| *of == part && *count > 0).map(|(_, count)| *count -= 1).is_some()
    };
    CAPITALS.into_iter().filter(|(country, _)| is_wanted(country)).collect()
}

fn question(country: &str) -> String {
    format!("Capital of {country}?")
}

/// A short system message instead of the template's own: what is corrected is learned from, too, and costs as much.
fn conversation(country: &str) -> Value {
    json!([{ "role": "system", "content": "Brief." }, { "role": "user", "content": question(country) }])
}

/// The answer of a pirate.
fn answer(capital: &str) -> String {
    format!("Aye, that be {capital}, matey!")
}

fn run(home: &TempDir, arguments: &[&str]) -> Result<String, String> {
    let output = ruvllm(home).args(arguments).output().expect("the program runs");
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() { Ok(out) } else { Err(err) }
}

fn run_json(home: &TempDir, arguments: &[&str]) -> Value {
    let printed = run(home, &[arguments, &["--json"]].concat()).expect("it succeeds");
    serde_json::from_str(&printed).expect("JSON")
}

fn key(home: &TempDir, name: &str, more: &[&str]) -> String {
    let key = run(home, &[&["keys", "add", name], more].concat()).expect("a key");
    format!("authorization: Bearer {}\r\n", key.trim())
}

/// The head of a chat completion's response, and its content.
fn asked(server: &Server, headers: &str, more: Value) -> (String, Value) {
    let mut body = json!({
        "model": "smollm2", "messages": conversation("Iceland"), "max_tokens": 12, "temperature": 0,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let answer = server.post_and_read("/v1/chat/completions", headers, &body);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
    (head.to_lowercase(), body)
}

fn adapter_of(head: &str) -> Option<&str> {
    head.lines().find_map(|line| line.strip_prefix("x-ruvllm-adapter: "))
}

/// Waits until a running server has noticed what is served now.
fn until_served(server: &Server, headers: &str, name: Option<&str>) -> Value {
    let began = Instant::now();
    loop {
        let (head, body) = asked(server, headers, json!({}));
        let adapter = adapter_of(&head);
        if adapter.and_then(|adapter| adapter.split_once('@')).map(|(name, _)| name) == name {
            return body["choices"][0]["message"]["content"].clone();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "still {adapter:?}, not {name:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Asks all questions. Returns the ids of the responses.
fn ask_all(server: &Server, headers: &str, lessons: &[(&str, &str)]) -> Vec<Value> {
    let ask = |(country, _): &(&str, &str)| {
        let messages = conversation(country);
        let body = json!({ "model": "smollm2", "messages": messages, "max_tokens": 1, "temperature": 0 });
        let (status, answer) = server.post("/v1/chat/completions", headers, &body);
        assert_eq!(status, 200, "{answer}");
        answer["id"].clone()
    };
    lessons.iter().map(ask).collect()
}

/// Corrects the answers for which there is a correction.
fn correct(server: &Server, headers: &str, ids: &[Value], correction: impl Fn(usize) -> Option<String>) {
    for (index, id) in ids.iter().enumerate() {
        let Some(correction) = correction(index) else { continue };
        let body = json!({ "request_id": id, "correction": correction });
        let (status, said) = server.post("/v1/feedback", headers, &body);
        assert_eq!(status, 202, "{said}");
    }
    // Written within a second.
    std::thread::sleep(Duration::from_millis(2500));
}

/// Settings for little work: short texts, few examples. It takes as much time as tests beside it: with a low priority it might
/// get none for minutes.
fn learn_little(home: &TempDir) {
    let essays = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/essays.txt");
    let essays = std::fs::read_to_string(essays).expect("essays");
    let [general, replay] = [("general", &essays[..1600]), ("replay", &essays[4000..5200])].map(|(name, text)| {
        let path = home.path().join(name);
        std::fs::write(&path, text).expect("room for a file");
        path
    });
    let settings = format!(
        "[learn.import]\nnice = 0\nstep_tokens = 160\nprompt_examples = 1\ncontext = 256\ngeneral = {general:?}\n\n\
         [learn.now]\nnice = 0\nstep_tokens = 160\nrank = 4\nepochs = 2\nlearning_rate = 0.0015\nreplay_share = 0.1\n\
         prompt_examples = 1\ncontext = 256\ngeneral = {general:?}\nreplay = {replay:?}\n"
    );
    std::fs::write(home.path().join("config.toml"), settings).expect("room for a file");
}

const SCOPE: [&str; 3] = ["smollm2", "--tenant", "acme"];

fn learn<'a>(what: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["learn", what], &SCOPE[..], more].concat()
}

/// The process in which a server learns, if there is one, and whether it stands still.
fn learner(server: &Server) -> Option<bool> {
    let state_of = |entry: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // What stands before is the name of the program.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, parent) = (fields.next()?, fields.next()?);
        (parent == server.child.id().to_string()).then(|| state == "T")
    };
    std::fs::read_dir("/proc").expect("Linux").filter_map(Result::ok).find_map(state_of)
}

fn until<T>(what: &str, within: Duration, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < within, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The last version of the scope, if it has any.
fn last_version(home: &TempDir) -> Option<Value> {
    let history = run_json(home, &learn("history", &[]));
    history["versions"].as_array().expect("a list").last().cloned()
}

#[test]
fn what_was_learned_is_judged_served_rolled_back_and_forgotten() {
    let home = home();
    learn_little(&home);
    let (acme, globex) = (key(&home, "acme", &[]), key(&home, "globex", &["--no-learn"]));
    // Has said enough to judge by, and too little for the server to learn from.
    let initech = key(&home, "initech", &[]);
    let admin = key(&home, "root", &["--scope", "admin"]);
    let lessons = lessons();
    // What corrections change at once is another test. A server that learns needs all of them.
    let limits = ["--context", "512", "--log-level", "warn", "--learn-new", &lessons.len().to_string()];
    let server = start(&home, &[&["smollm2", "--learn", "--no-recall", "--learn-every", "1s"], &limits[..]].concat());
    let ids = ask_all(&server, &acme, &lessons);
    let right = |index: usize| answer(lessons[index].1);

    let few = lessons_of(8, 6);
    let ids_of_few = ask_all(&server, &initech, &few);
    correct(&server, &initech, &ids_of_few, |index| Some(answer(few[index].1)));
    correct(&server, &acme, &ids, |index| (index < 3).then(|| right(index)));
    let refusal = run(&home, &learn("now", &[])).expect_err("three are too few");
    assert!(refusal.contains("there are 3 conversations") && refusal.contains("at least 8, 2 and 6"), "{refusal}");
    let waiting = run_json(&home, &learn("now", &["--new", "4"]));
    assert_eq!(waiting["state"], "waiting");
    assert!(waiting["reason"].as_str().is_some_and(|reason| reason.starts_with("3 answers were")), "{waiting}");
    let alone = until_served(&server, &acme, None);
    assert_eq!(last_version(&home), None);

    correct(&server, &acme, &ids, |index| (index >= 3).then(|| right(index)));
    let minutes = |count: u64| Duration::from_secs(60 * count);
    until("it learns by itself", minutes(1), || learner(&server));
    // It stands still while something is answered, and learns on.
    let body = json!({ "model": "smollm2", "prompt": "Once", "max_tokens": 64, "ignore_eos": true });
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.post("/v1/completions", &globex, &body).0);
        until("it stands still", minutes(1), || learner(&server).filter(|stands| *stands));
        assert_eq!(asked.join().expect("an answer"), 200);
    });
    until("it goes on", minutes(1), || learner(&server).filter(|stands| !stands));
    let promoted = until("it has learned", minutes(20), || {
        std::thread::sleep(Duration::from_millis(500));
        last_version(&home)
    });
    assert_eq!((&promoted["version"], &promoted["state"]), (&json!(1), &json!("promoted")), "{promoted}");
    let metrics = server.get("/metrics", &server.operator());
    assert!(metrics.contains("ruvllm_learned_total{outcome=\"promoted\"} 1"), "{metrics}");
    let compared = promoted["report"]["gate"]["comparisons"].as_array().expect("a list");
    let against: Vec<&str> = compared.iter().filter_map(|one| one["against"].as_str()).collect();
    assert_eq!(against, ["base", "ngram", "examples"]);
    assert!(compared.iter().all(|one| one["high"].as_f64() < Some(0.0)), "{promoted}");
    // Nothing is new.
    assert_eq!(run_json(&home, &learn("now", &["--new", "1"]))["state"], "waiting");
    // What was corrected is less likely than before, beside its correction.
    let (pairs, preferences) = (&promoted["report"]["pairs"], &promoted["report"]["preferences"]);
    assert_eq!(pairs, &json!({ "training": 14, "validation": 2, "held_out": 7, "left_out": 0 }));
    let lead = |of: &str| preferences[of]["lead"].as_f64().expect("a number");
    assert!(lead("candidate") > lead("base") + 0.5, "{preferences}");

    let learned = until_served(&server, &acme, Some("learned-1"));
    assert!(learned.as_str().is_some_and(|text| text.starts_with("Aye, that be")), "{learned}");
    let (head, opted_out) = asked(&server, &acme, json!({ "adapter": "" }));
    assert_eq!((adapter_of(&head), &opted_out["choices"][0]["message"]["content"]), (None, &alone));
    let (head, body) = asked(&server, &globex, json!({}));
    assert_eq!((adapter_of(&head), &body["choices"][0]["message"]["content"]), (None, &alone), "of another tenant");
    let digest = promoted["adapter"].as_str().expect("a digest").to_owned();
    let (head, body) = asked(&server, &acme, json!({}));
    assert_eq!(adapter_of(&head), Some(format!("learned-1@{digest}").as_str()));
    let id = body["id"].as_str().expect("an id").to_owned();
    let (status, _) =
        server.post("/v1/chat/completions", &acme, &json!({ "model": "smollm2:learned-1", "messages": [] }));
    assert_ne!(status, 200, "it cannot be named");

    let history = run_json(&home, &learn("history", &[]));
    let states: Vec<&Value> = history["versions"].as_array().expect("a list").iter().map(|one| &one["state"]).collect();
    assert_eq!((states.last(), &history["served"]["version"]), (Some(&&json!("promoted")), &json!(1)));
    assert_eq!(states.len(), 1);
    let page = home.path().join("losses.html");
    let plot = learn("history", &["--plot", page.to_str().expect("a plain path")]);
    assert!(run(&home, &plot).expect("a table").contains("promoted, served"));
    assert!(std::fs::read_to_string(&page).expect("a page").contains("<svg"));

    // Back and forth, bit for bit; over HTTP too.
    assert!(run(&home, &learn("rollback", &[])).expect("it succeeds").contains("the model alone"));
    assert_eq!(until_served(&server, &acme, None), alone);
    let scope = json!({ "model": "smollm2", "tenant": "acme", "version": 1 });
    assert_eq!(server.post("/admin/learn/promote", &acme, &scope).0, 403);
    let (status, said) = server.post("/admin/learn/promote", &admin, &scope);
    assert_eq!((status, &said["served"]["version"], &said["served"]["trail"]), (200, &json!(1), &json!([0])), "{said}");
    let (head, body) = asked(&server, &acme, json!({}));
    assert!(adapter_of(&head).is_some() && body["choices"][0]["message"]["content"] == learned, "at once: {body}");
    let listed = server.get("/admin/learn/versions?model=smollm2&tenant=acme", &admin);
    assert!(listed.starts_with("HTTP/1.1 200") && listed.contains("\"promoted\""), "{listed}");

    // The log knows who answered and what was changed.
    let shown = server.get(&format!("/v1/witness/{id}"), &acme);
    assert!(shown.contains(&format!("learned-1@{digest}")), "{shown}");
    let backup = home.path().join("backup");
    let backup = backup.to_str().expect("a plain path");
    run(&home, &["memory", "backup", backup]).expect("a copy");
    // What it was learned from is forgotten, and it as well.
    let folder = home.path().join("memory/learned");
    assert!(folder.join(&digest).is_dir());
    let first = ids[0].as_str().expect("an id");
    let forgotten = run(&home, &["learn", "forget", "--request", first]).expect("it succeeds");
    assert!(forgotten.contains("learned from some of it"), "{forgotten}");
    assert_eq!(until_served(&server, &acme, None), alone);
    assert!(!folder.join(&digest).exists());
    assert!(run(&home, &learn("promote", &["1", "--force"])).expect_err("it is gone").contains("was forgotten"));
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
    let log = run(&home, &["witness", "export", "-"]).expect("a log");
    for action in ["promoted", "rolled_back", "withdrawn"] {
        assert!(log.contains(&format!("\"action\":\"{action}\"")), "{action}");
    }
    assert!(run(&home, &["witness", "verify"]).expect("it verifies").starts_with("verified"));
    // A backup has what was learned as well.
    run(&home, &["memory", "restore", backup]).expect("it is restored");
    assert!(folder.join(&digest).is_dir());
    assert_eq!(run_json(&home, &learn("history", &[]))["served"]["version"], json!(1));
    others_get_what_was_learned(&home);
}

/// Published, and imported for a tenant that has learned nothing: it is judged by what that tenant has said.
fn others_get_what_was_learned(home: &TempDir) {
    let path = |name: &str| home.path().join(name).to_str().expect("a plain path").to_owned();
    let (key, folder) = (path("me.key"), path("published"));
    run(home, &["kernels", "keygen", &key]).expect("a key");
    let published = run_json(home, &learn("publish", &[&folder, "--secret-key", &key]));
    let signer = published["signer"].as_str().expect("a key");
    let import = |more: &[&str]| {
        run(home, &[&["learn", "import", "smollm2", &folder, "--tenant", "initech", "--json"], more].concat())
    };
    let other = run_json(home, &["kernels", "keygen", &path("other.key")]);
    let other = other["public_key"].as_str().expect("a key");
    let untrusted = import(&["--trust", other]).expect_err("nobody knows who that is");
    assert!(untrusted.contains("a key that is not trusted"), "{untrusted}");
    let weights = home.path().join("published/adapter_model.safetensors");
    let whole = std::fs::read(&weights).expect("weights");
    let mut changed = whole.clone();
    changed[whole.len() - 1] ^= 1;
    std::fs::write(&weights, changed).expect("room for a file");
    let refused = import(&["--trust", signer]).expect_err("it was changed");
    assert!(refused.contains("adapter_model.safetensors is not what learned.json says"), "{refused}");
    std::fs::write(&weights, whole).expect("room for a file");

    let imported: Value = serde_json::from_str(&import(&["--trust", signer]).expect("it is judged")).expect("JSON");
    assert_eq!((&imported["version"], &imported["state"]), (&json!(1), &json!("promoted")), "{imported}");
    assert_eq!(imported["report"]["imported"]["signer"], *signer);
    assert_eq!(imported["report"]["gate"]["documents"], 6);
    assert!(import(&["--trust", signer]).expect_err("once is enough").contains("it is version 1 here already"));
    // A learner whose server is gone stops.
    let mut orphan = ruvllm(home);
    orphan.args(["learn", "now", "smollm2", "--tenant", "initech", "--until-input-ends"]).stdin(Stdio::null());
    let stopped = orphan.output().expect("it runs");
    assert!(!stopped.status.success(), "{stopped:?}");
    let history = run_json(home, &["learn", "history", "smollm2", "--tenant", "initech"]);
    assert_eq!(history["versions"].as_array().map(Vec::len), Some(1), "{history}");
}

/// What is learned from says something else than what is held out: nothing that helps can be learned. Takes minutes.
#[test]
fn what_does_not_help_is_refused_and_served_only_by_force() {
    if std::env::var_os("RUVLLM_TEST_LARGE").is_none() {
        return;
    }
    let home = home();
    learn_little(&home);
    let acme = key(&home, "acme", &[]);
    let server = start(&home, &["smollm2", "--learn", "--no-recall", "--context", "512", "--log-level", "warn"]);
    let lessons = lessons();
    let ids = ask_all(&server, &acme, &lessons);
    let right = |index: usize| answer(lessons[index].1);
    let is_held_out = |index: usize| part_of(DocumentKey::of(&question(lessons[index].0))) == Part::HeldOut;
    let wrong = |index: usize| format!("Error {}: no such place in the table.", 7919 * (index + 3) % 1000);
    correct(&server, &acme, &ids, |index| Some(if is_held_out(index) { right(index) } else { wrong(index) }));
    let refused = run_json(&home, &learn("now", &["--epochs", "1"]));
    assert_eq!((&refused["version"], &refused["state"]), (&json!(1), &json!("refused")), "{refused}");
    let gate = &refused["report"]["gate"];
    assert!(!gate["reasons"].as_array().expect("a list").is_empty(), "{gate}");
    assert!(gate["documents"].as_u64() >= Some(6), "{gate}");
    assert!(run(&home, &learn("promote", &["1"])).expect_err("it was refused").contains("--force"));

    // Corrected again: the last one counts.
    correct(&server, &acme, &ids, |index| Some(right(index)));
    let promoted = run_json(&home, &learn("now", &[]));
    assert_eq!((&promoted["version"], &promoted["state"]), (&json!(2), &json!("promoted")), "{promoted}");
    let differ = run(&home, &["learn", "diff", "smollm2", "1", "2", "--tenant", "acme"]).expect("a table");
    assert!(differ.contains("against examples"), "{differ}");
    let forced = run_json(&home, &learn("promote", &["1", "--force"]));
    assert_eq!(forced["served"]["trail"], json!([0, 2]));
    until_served(&server, &acme, Some("learned-1"));
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
    assert!(run(&home, &["witness", "export", "-"]).expect("a log").contains("\"action\":\"forced\""));
}
