//! Feedback that changes the next answers, with the real program and the real model.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::server::{Server, ruvllm, start};
use crate::support::home;
use serde_json::{Value, json};
use tempfile::TempDir;

const SERVE: [&str; 6] = ["smollm2", "--context", "512", "--log-level", "warn", "--learn"];
const QUESTION: &str = "What is the capital of Norway?";
const CORRECTION: &str = "Oslo, where the fjord ends.";

fn key(home: &TempDir, name: &str, more: &[&str]) -> String {
    let key = ruvllm(home).args(["keys", "add", name]).args(more).output().expect("the program runs");
    assert!(key.status.success(), "{}", String::from_utf8_lossy(&key.stderr));
    format!("authorization: Bearer {}\r\n", String::from_utf8_lossy(&key.stdout).trim())
}

/// An answer at temperature 0.
#[derive(Debug, PartialEq)]
struct Answer {
    text: String,
    /// What the header says.
    recall: Option<String>,
    id: String,
}

fn ask(server: &Server, headers: &str, question: &str, more: Value) -> Answer {
    let mut body = json!({
        "model": "smollm2", "messages": [{ "role": "user", "content": question }], "max_tokens": 24, "temperature": 0,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let answer = server.post_and_read("/v1/chat/completions", headers, &body);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let body: Value = serde_json::from_str(body).expect("JSON");
    let recall = head.lines().find_map(|line| line.strip_prefix("x-ruvllm-recall: ")).map(str::to_owned);
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    Answer { text: text(&body["choices"][0]["message"]["content"]), recall, id: text(&body["id"]) }
}

/// Asks until the answer is drawn with a memory, or without one.
fn ask_until(server: &Server, headers: &str, question: &str, more: &Value, has_memory: bool) -> (Answer, Duration) {
    let started = Instant::now();
    loop {
        let answer = ask(server, headers, question, more.clone());
        if answer.recall.is_some() == has_memory {
            return (answer, started.elapsed());
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{answer:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn correct(server: &Server, headers: &str, answer: &Answer, correction: &str) {
    let body = json!({ "request_id": answer.id, "correction": correction });
    let (status, said) = server.post("/v1/feedback", headers, &body);
    assert_eq!((status, &said["withheld"]), (202, &json!([])), "{said}");
}

fn delete(server: &Server, path: &str, headers: &str) {
    let mut stream = server.connect();
    write!(stream, "DELETE {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics", &server.operator());
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} in {text}")).parse().expect("a number")
}

#[test]
fn a_correction_is_the_next_answer_of_its_tenant_until_it_is_forgotten() {
    let home = home();
    let (acme, globex, quiet) =
        (key(&home, "acme", &[]), key(&home, "globex", &[]), key(&home, "quiet", &["--no-learn"]));
    let server = start(&home, &SERVE);
    let nothing = json!({});
    let before = ask(&server, &acme, QUESTION, nothing.clone());
    let others: Vec<Answer> = [&globex, &quiet].map(|key| ask(&server, key, QUESTION, nothing.clone())).into();
    assert!(before.recall.is_none() && before.text != CORRECTION, "{before:?}");
    correct(&server, &acme, &before, CORRECTION);
    let (after, took) = ask_until(&server, &acme, QUESTION, &nothing, true);
    println!("{took:?} until {:?} became {:?}", before.text, after.text);
    assert_eq!((after.text.as_str(), after.recall.as_deref()), (CORRECTION, Some("items=1")));
    // Whoever did not say so is answered as before, to the byte.
    for (key, other) in [&globex, &quiet].into_iter().zip(&others) {
        let again = ask(&server, key, QUESTION, nothing.clone());
        assert_eq!((&again.text, &again.recall), (&other.text, &None));
    }
    let alone = ask(&server, &acme, QUESTION, json!({ "recall": false }));
    assert_eq!((&alone.text, alone.recall), (&before.text, None));
    // Another question is still answered: what all prompts end with says nothing.
    let other = "Name three colours of the rainbow.";
    let (with, without) =
        (ask(&server, &acme, other, nothing.clone()), ask(&server, &acme, other, json!({ "recall": false })));
    println!("{:?} with the memory, {:?} without", with.text, without.text);
    assert!(with.recall.is_some() && !with.text.contains("Oslo"), "{with:?}");
    assert_eq!((metric(&server, "ruvllm_recall_items"), metric(&server, "ruvllm_recall_scopes")), (1.0, 1.0));
    assert!(metric(&server, "ruvllm_recall_bytes") > 1000.0 && metric(&server, "ruvllm_recall_share_mean") > 0.0);
    let entry = loop {
        let answer = server.get(&format!("/v1/witness/{}", after.id), &acme);
        if answer.starts_with("HTTP/1.1 200") {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(entry.contains("\"recall\":{\"items\":1,\"share\":0."), "{entry}");
    delete(&server, &format!("/v1/feedback/{}", before.id), &acme);
    let forgotten = ask(&server, &acme, QUESTION, nothing);
    assert_eq!((&forgotten.text, &forgotten.recall), (&before.text, &None), "at once");
    assert_eq!(metric(&server, "ruvllm_recall_items"), 0.0);
}

#[test]
fn a_correction_is_the_next_answer_with_the_adapter_too() {
    let home = home();
    let acme = key(&home, "acme", &[]);
    let adapter = concat!("mine=", env!("CARGO_MANIFEST_DIR"), "/tests/golden/trained");
    let server = start(&home, &[&SERVE[..], &["--adapter", adapter]].concat());
    let (alone, adapted) = (json!({}), json!({ "adapter": "mine" }));
    let before = ask(&server, &acme, QUESTION, adapted.clone());
    assert_ne!(ask(&server, &acme, QUESTION, alone.clone()).text, before.text);
    correct(&server, &acme, &before, CORRECTION);
    for more in [&adapted, &alone] {
        assert_eq!(ask_until(&server, &acme, QUESTION, more, true).0.text, CORRECTION);
    }
    assert_eq!(metric(&server, "ruvllm_recall_scopes"), 2.0, "each has its own");
    // Added up, they are none that a text to come could be seen with.
    let weighted = ask(&server, &acme, QUESTION, json!({ "adapter": [{ "name": "mine", "weight": 0.5 }] }));
    assert_eq!(weighted.recall, None);
    delete(&server, &format!("/v1/feedback/{}", before.id), &acme);
    let forgotten = ask(&server, &acme, QUESTION, adapted);
    assert_eq!((&forgotten.text, forgotten.recall), (&before.text, None));
}

#[test]
fn corrections_belong_to_users_and_are_read_again_after_a_restart() {
    let home = home();
    let server = start(&home, &SERVE);
    let (ada, eve) = (json!({ "user": "ada" }), json!({ "user": "eve" }));
    let before = ask(&server, "", QUESTION, ada.clone());
    ask(&server, "", QUESTION, eve.clone());
    correct(&server, "", &before, CORRECTION);
    assert_eq!(ask_until(&server, "", QUESTION, &ada, true).0.text, CORRECTION);
    let of_eve = ask(&server, "", QUESTION, eve.clone());
    assert_eq!((&of_eve.text, of_eve.recall), (&before.text, None), "not hers");
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));

    let server = start(&home, &SERVE);
    assert_eq!(ask_until(&server, "", QUESTION, &ada, true).0.text, CORRECTION);
    assert_eq!(ask(&server, "", QUESTION, eve).text, before.text);
    // Another process forgets.
    let forgotten = ruvllm(&home).args(["learn", "forget", "--user", "ada"]).output().expect("the program runs");
    assert!(forgotten.status.success(), "{}", String::from_utf8_lossy(&forgotten.stderr));
    assert_eq!(ask_until(&server, "", QUESTION, &ada, false).0.text, before.text);
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));

    let server = start(&home, &[&SERVE[..], &["--no-recall"]].concat());
    let answer = ask(&server, "", QUESTION, json!({}));
    correct(&server, "", &answer, CORRECTION);
    std::thread::sleep(Duration::from_secs(2));
    let again = ask(&server, "", QUESTION, json!({}));
    assert_eq!((again.text, again.recall), (answer.text, None));
}
