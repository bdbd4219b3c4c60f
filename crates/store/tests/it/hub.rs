//! Transfers from a hub, and everything a hub can do wrong.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::*;
use ruvllm_store::{Event, Progress, Store, StoreError};

const SIZE: usize = 1_000_000;

fn store_at(server: &Server, home: &tempfile::TempDir) -> Store {
    Store::with_config(config(home.path(), &server.url, toy(&content(SIZE), vec![hub_source()])))
}

/// A store that gives up on a silent server soon.
fn impatient(server: &Server, home: &tempfile::TempDir) -> Store {
    let mut config = config(home.path(), &server.url, toy(&content(SIZE), vec![hub_source()]));
    config.hub.read_timeout = Duration::from_secs(1);
    Store::with_config(config)
}

/// What one failed pull of `toy` says.
fn failure(handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> String {
    let server = Server::start(handler);
    let home = tempfile::tempdir().unwrap();
    let store = store_at(&server, &home);
    let error = store.pull("toy", &mut quiet).unwrap_err();
    assert!(matches!(error, StoreError::AllSourcesFailed { .. }), "{error}");
    assert!(matches!(store.resolve("toy"), Err(StoreError::NotPulled { .. })));
    error.to_string()
}

#[test]
fn a_pulled_model_is_resolved_under_all_its_names_and_fetched_once() {
    let server = Server::start(|request, _| Reply::file(request, &content(SIZE), "\"a\""));
    let home = tempfile::tempdir().unwrap();
    let store = store_at(&server, &home);
    let mut events = Vec::new();
    let model = store.pull("toy", &mut |event| events.push(event)).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert_eq!(store.resolve("plaything").unwrap(), model);
    assert_eq!(store.ensure("toy", &mut quiet).unwrap(), model);
    assert_eq!(store.pull("toy", &mut quiet).unwrap(), model);
    let manifest = model.manifest.unwrap();
    assert_eq!(manifest.main.sha256, sha256(&content(SIZE)));
    assert_eq!(manifest.source, "hf:owner/repo/toy.gguf");
    assert_eq!(manifest.licence.as_deref(), Some("MIT"));
    let paths: Vec<String> = server.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, [HUB_PATH]);
    assert!(matches!(&events[0], Event::TrySource { source } if source == "hf:owner/repo/toy.gguf"));
    let all = SIZE as u64;
    assert!(events.contains(&Event::Bytes { done_bytes: all, total_bytes: all }));
    assert!(matches!(events.last(), Some(Event::Done { .. })));
    assert!(!home.path().join("models/.partial/toy").exists());
}

#[test]
fn a_transfer_cut_twice_goes_on_where_it_stopped() {
    let server = Server::start(|request, before| {
        let reply = Reply::file(request, &content(SIZE), "\"a\"");
        if before < 2 { reply.cut_after(300_000) } else { reply }
    });
    let home = tempfile::tempdir().unwrap();
    let mut retries = 0;
    let model = store_at(&server, &home)
        .pull("toy", &mut |event| retries += usize::from(matches!(event, Event::Retrying { .. })))
        .unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert_eq!(retries, 2);
    let starts: Vec<_> = server.requests().iter().map(Request::range_start).collect();
    assert_eq!(starts, [None, Some(300_000), Some(600_000)]);
    assert_eq!(server.requests()[1].header("if-range"), Some("\"a\""));
}

#[test]
fn a_later_pull_resumes_what_an_earlier_one_left() {
    // Four answers in a row without a byte end the first pull.
    let server = Server::start(|request, before| match before {
        0 => Reply::file(request, &content(SIZE), "\"a\"").cut_after(400_000),
        1..=3 => Reply::status(503),
        _ => Reply::file(request, &content(SIZE), "\"a\""),
    });
    let home = tempfile::tempdir().unwrap();
    let error = store_at(&server, &home).pull("toy", &mut quiet).unwrap_err();
    assert!(error.to_string().contains("broke at byte 400000"), "{error}");
    let model = store_at(&server, &home).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert_eq!(model.manifest.unwrap().main.sha256, sha256(&content(SIZE)));
    assert_eq!(server.requests().last().unwrap().range_start(), Some(400_000));
}

#[test]
fn a_complete_partial_file_needs_no_request() {
    struct StopAtEnd(bool);
    impl Progress for StopAtEnd {
        fn report(&mut self, event: Event) {
            self.0 |= matches!(event, Event::Bytes { done_bytes, .. } if done_bytes == SIZE as u64);
        }
        fn cancelled(&self) -> bool {
            self.0
        }
    }
    let server = Server::start(|request, _| Reply::file(request, &content(SIZE), "\"a\""));
    let home = tempfile::tempdir().unwrap();
    let store = store_at(&server, &home);
    let error = store.pull("toy", &mut StopAtEnd(false)).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled), "{error}");
    store.pull("toy", &mut quiet).unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_server_that_ignores_ranges_makes_us_start_anew() {
    let server = Server::start(|request, before| {
        let mut whole = request.clone();
        whole.headers.remove("range");
        let reply = Reply::file(&whole, &content(SIZE), "\"a\"");
        if before == 0 { reply.cut_after(500_000) } else { reply }
    });
    let home = tempfile::tempdir().unwrap();
    let model = store_at(&server, &home).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
}

#[test]
fn a_server_that_ignores_ranges_and_always_cuts_is_given_up() {
    let said = failure(|request, _| {
        let mut whole = request.clone();
        whole.headers.remove("range");
        Reply::file(&whole, &content(SIZE), "\"a\"").cut_after(500_000)
    });
    assert!(said.contains("after 4 attempts"), "{said}");
}

#[test]
fn a_file_that_changed_meanwhile_is_fetched_from_its_beginning() {
    // The first answer is another version of the file, of the same size.
    let server = Server::start(|request, before| match before {
        0 => Reply::file(request, &vec![7; SIZE], "\"old\"").cut_after(500_000),
        _ => Reply::file(request, &content(SIZE), "\"new\""),
    });
    let home = tempfile::tempdir().unwrap();
    let model = store_at(&server, &home).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
}

#[test]
fn a_weak_tag_is_not_sent_but_still_compared() {
    let server = Server::start(|request, before| match before {
        0 => Reply::file(request, &vec![7; SIZE], "W/\"old\"").cut_after(500_000),
        _ => Reply::file(request, &content(SIZE), "W/\"new\""),
    });
    let home = tempfile::tempdir().unwrap();
    let model = store_at(&server, &home).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert!(server.requests().iter().all(|request| request.header("if-range").is_none()));
}

#[test]
fn wrong_bytes_are_discarded_with_both_hashes_named() {
    let server = Server::start(|request, _| Reply::file(request, &vec![7; SIZE], "\"a\""));
    let home = tempfile::tempdir().unwrap();
    let error = store_at(&server, &home).pull("toy", &mut quiet).unwrap_err().to_string();
    assert!(error.contains(&sha256(&content(SIZE))), "{error}");
    assert!(error.contains(&sha256(&vec![7; SIZE])), "{error}");
    let left = fs::read_dir(home.path().join("models/.partial/toy")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn a_wrong_size_is_refused_before_the_transfer() {
    let said = failure(|request, _| Reply::file(request, &content(SIZE + 1), "\"a\""));
    assert!(said.contains("expected 1000000 bytes, got 1000001"), "{said}");
}

#[test]
fn a_wrong_hash_announced_by_the_hub_is_refused_before_the_transfer() {
    let said = failure(|request, _| {
        let announced = format!("\"{}\"", sha256(b"other"));
        Reply::file(request, &content(SIZE), "\"a\"").with("X-Linked-Etag", &announced)
    });
    assert!(said.contains(&sha256(b"other")), "{said}");
}

#[test]
fn a_body_without_stated_length_is_bounded_by_the_pinned_size() {
    let said =
        failure(|request, _| Reply { without_length: true, ..Reply::file(request, &content(3 * SIZE), "\"a\"") });
    assert!(said.contains("expected 1000000 bytes"), "{said}");
}

#[test]
fn refusals_say_what_to_do() {
    for (status, remedy) in
        [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "revision"), (500, "status 500"), (418, "status 418")]
    {
        let said = failure(move |_, _| Reply::status(status));
        assert!(said.contains(remedy), "{status}: {said}");
    }
}

#[test]
fn a_short_outage_of_the_server_is_waited_out() {
    let server = Server::start(|request, before| match before {
        0 | 1 => Reply::status(503),
        _ => Reply::file(request, &content(SIZE), "\"a\""),
    });
    let home = tempfile::tempdir().unwrap();
    store_at(&server, &home).pull("toy", &mut quiet).unwrap();
}

#[test]
fn a_silent_server_is_left_after_the_read_timeout() {
    let server = Server::start(|request, before| {
        let reply = Reply::file(request, &content(SIZE), "\"a\"");
        match before {
            0 => Reply { stall: 2 * PATIENCE, ..reply.cut_after(100_000) },
            _ => reply,
        }
    });
    let home = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let model = impatient(&server, &home).pull("toy", &mut quiet).unwrap();
    assert!(began.elapsed() < PATIENCE, "it was waited for");
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
}

#[test]
fn a_server_that_accepts_and_never_answers_is_given_up_after_one_timeout() {
    let server = Server::start(|_, _| {
        std::thread::sleep(2 * PATIENCE);
        Reply::status(200)
    });
    let home = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let said = impatient(&server, &home).pull("toy", &mut quiet).unwrap_err().to_string();
    assert!(began.elapsed() < PATIENCE, "it was waited for");
    assert_eq!(server.requests().len(), 1);
    assert!(said.contains("cannot be reached"), "{said}");
}

#[test]
fn an_unreachable_hub_fails_at_once() {
    let home = tempfile::tempdir().unwrap();
    let endpoint = closed_port();
    let store = Store::with_config(config(home.path(), &endpoint, toy(&content(9), vec![hub_source()])));
    let error = store.pull("toy", &mut quiet).unwrap_err().to_string();
    assert!(error.contains(&endpoint) && error.contains("cannot be reached"), "{error}");
}

#[test]
fn the_token_goes_to_the_endpoint_and_not_where_it_redirects() {
    let elsewhere = Server::start(|request, _| Reply::file(request, &content(SIZE), "\"a\""));
    let target = format!("{}/signed?key=1", elsewhere.url);
    let hub = Server::start(move |request, _| match request.path.as_str() {
        HUB_PATH => Reply::redirect("/renamed"),
        _ => Reply::redirect(&target),
    });
    let home = tempfile::tempdir().unwrap();
    let mut config = config(home.path(), &hub.url, toy(&content(SIZE), vec![hub_source()]));
    config.hub.token = Some("hf_secret".to_owned());
    Store::with_config(config).pull("toy", &mut quiet).unwrap();
    let sent = |server: &Server| -> Vec<Option<String>> {
        let requests = server.requests();
        requests.iter().map(|request| request.header("authorization").map(str::to_owned)).collect()
    };
    assert_eq!(sent(&hub), vec![Some("Bearer hf_secret".to_owned()); 2]);
    assert_eq!(sent(&elsewhere), [None]);
}

#[test]
fn endless_redirects_end() {
    let said = failure(|_, _| Reply::redirect("/again"));
    assert!(said.contains("redirects more than"), "{said}");
}

#[test]
fn any_hub_file_can_be_pulled_by_address_and_its_hash_is_recorded() {
    let server = Server::start(|request, _| {
        let linked = format!("\"{}\"", sha256(&content(SIZE)));
        Reply::file(request, &content(SIZE), "\"a\"").with("X-Linked-Etag", &linked)
    });
    let home = tempfile::tempdir().unwrap();
    let store = store_at(&server, &home);
    let spec = "hf:Some/Repo/sub/thing.gguf@v2";
    assert!(matches!(store.resolve(spec), Err(StoreError::NotPulled { .. })));
    let model = store.ensure(spec, &mut quiet).unwrap();
    assert_eq!(model.name, "some/thing@v2");
    assert_eq!(server.requests()[0].path, "/Some/Repo/resolve/v2/sub/thing.gguf");
    let manifest = model.manifest.clone().unwrap();
    assert_eq!((manifest.main.sha256, manifest.source), (sha256(&content(SIZE)), spec.to_owned()));
    for name in [spec, "some/thing@v2"] {
        assert_eq!(store.resolve(name).unwrap(), model);
        assert_eq!(store.pull(name, &mut quiet).unwrap(), model);
    }
    assert_eq!(server.requests().len(), 1);
    // The same file name in another repository of that owner must not pass for this one.
    let error = store.pull("hf:some/other/thing.gguf@v2", &mut quiet).unwrap_err();
    assert!(matches!(error, StoreError::NameTaken { .. }), "{error}");
}

#[test]
fn an_unpinned_file_that_differs_from_the_announced_hash_is_refused() {
    let server = Server::start(|request, _| {
        let linked = format!("\"{}\"", sha256(b"other"));
        Reply::file(request, &content(SIZE), "\"a\"").with("X-Linked-Etag", &linked)
    });
    let home = tempfile::tempdir().unwrap();
    let error = store_at(&server, &home).pull("hf:a/b/c.gguf", &mut quiet).unwrap_err().to_string();
    assert!(error.contains(&sha256(b"other")), "{error}");
}

#[test]
fn an_error_page_is_not_taken_for_a_model() {
    let server = Server::start(|request, _| Reply::file(request, b"<html>please log in", "\"a\""));
    let home = tempfile::tempdir().unwrap();
    let error = store_at(&server, &home).pull("hf:a/b/c.gguf", &mut quiet).unwrap_err().to_string();
    assert!(error.contains("GGUF"), "{error}");
}

#[test]
fn a_size_that_nobody_states_is_refused() {
    let server =
        Server::start(|request, _| Reply { without_length: true, ..Reply::file(request, &content(SIZE), "\"a\"") });
    let home = tempfile::tempdir().unwrap();
    let error = store_at(&server, &home).pull("hf:a/b/c.gguf", &mut quiet).unwrap_err().to_string();
    assert!(error.contains("how large"), "{error}");
}

#[test]
fn a_model_of_the_catalogue_that_is_not_pinned_is_what_the_hub_has() {
    let file = [b"GGUF".to_vec(), content(SIZE)].concat();
    let served = file.clone();
    let server = Server::start(move |request, _| match request.path == HUB_PATH {
        true => Reply::file(request, &served, "\"a\""),
        false => Reply::status(404),
    });
    let home = tempfile::tempdir().unwrap();
    let mut catalogue = toy(b"", vec![hub_source()]);
    catalogue.entries[0].files.clear();
    let store = Store::with_config(config(home.path(), &server.url, catalogue));
    assert!(matches!(store.resolve("toy"), Err(StoreError::NotPulled { .. })));
    let model = store.ensure("toy", &mut quiet).unwrap();
    assert_eq!((fs::read(&model.path).unwrap() == file, model.name.as_str()), (true, "toy"));
    assert_eq!(model.manifest.as_ref().unwrap().licence.as_deref(), Some("MIT"));
    assert_eq!(store.resolve("plaything").unwrap(), model);
    assert_eq!(store.pull("toy", &mut quiet).unwrap(), model);
    store.remove("toy").unwrap();
    assert!(matches!(store.remove("toy"), Err(StoreError::NotPulled { .. })));
}

/// A hub with one repository.
fn hub_with(files: Vec<(&'static str, Vec<u8>)>) -> Server {
    Server::start(move |request, _| {
        if request.path == "/api/models/Some/Repo/tree/main" {
            let entry = |(path, content): &(&str, Vec<u8>)| {
                let large = format!(r#","lfs":{{"oid":"{}","size":{}}}"#, sha256(content), content.len());
                let large = if path.ends_with(".safetensors") { large } else { String::new() };
                format!(r#"{{"type":"file","oid":"1f","size":{},"path":"{path}"{large}}}"#, content.len())
            };
            let listing: Vec<String> = files.iter().map(entry).collect();
            let listing =
                format!(r#"[{{"type":"directory","oid":"2f","size":0,"path":"onnx"}},{}]"#, listing.join(","));
            return Reply::file(request, listing.as_bytes(), "\"list\"");
        }
        let file = request.path.strip_prefix("/Some/Repo/resolve/main/");
        match files.iter().find(|(path, _)| Some(*path) == file) {
            Some((_, content)) => Reply::file(request, content, "\"a\""),
            None => Reply::status(404),
        }
    })
}

#[test]
fn a_repository_without_a_file_gives_the_gguf_that_fits() {
    let gguf = |bytes: usize| [b"GGUF".to_vec(), content(bytes)].concat();
    let server =
        hub_with(vec![("m-Q8_0.gguf", gguf(90_000)), ("m-Q4_K_M.gguf", gguf(50_000)), ("m-Q3_K_M.gguf", gguf(30_000))]);
    for (file_bytes_max, file, why) in [
        (None, "m-Q4_K_M.gguf", "the best for its size"),
        (Some(40_000), "m-Q3_K_M.gguf", "the best that fits into memory; m-Q4_K_M.gguf (50.0 kB) does not"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let config = config(home.path(), &server.url, toy(&content(SIZE), vec![hub_source()]));
        let store = Store::with_config(ruvllm_store::StoreConfig { file_bytes_max, ..config });
        assert!(matches!(store.resolve("hf:Some/Repo"), Err(StoreError::NotPulled { .. })));
        let mut told = Vec::new();
        let model = store.ensure("hf:Some/Repo", &mut |event| told.push(event)).unwrap();
        let is_told = |event: &Event| {
            matches!(event, Event::Chosen { file: chosen, why: reason, others, .. }
                if chosen == file && reason == why && others.len() == 2)
        };
        assert!(told.iter().any(is_told), "{told:?}");
        assert_eq!((model.name.as_str(), model.path.file_name().unwrap().to_str()), ("some/repo", Some(file)));
        assert_eq!(store.resolve("hf:Some/Repo").unwrap(), model);
        assert_eq!(store.pull("hf:Some/Repo", &mut quiet).unwrap(), model);
    }
}

#[test]
fn a_repository_of_safetensors_is_fetched_with_all_that_belongs_to_it() {
    let files = vec![
        ("README.md", b"# Model".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{ }".to_vec()),
        ("chat_template.jinja", b"{{ messages }}".to_vec()),
        ("model.safetensors", content(70_000)),
    ];
    let server = hub_with(files);
    let home = tempfile::tempdir().unwrap();
    let store = store_at(&server, &home);
    let model = store.ensure("hf:Some/Repo", &mut quiet).unwrap();
    assert!(model.path.ends_with("config.json"));
    let folder = model.path.parent().unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), content(70_000));
    assert_eq!(fs::read(folder.join("chat_template.jinja")).unwrap(), b"{{ messages }}");
    assert!(!folder.join("README.md").exists());
    // What is damaged is fetched again from where each file lies.
    fs::write(folder.join("tokenizer.json"), b"broken").unwrap();
    assert!(matches!(store.resolve("some/repo"), Err(StoreError::Damaged { .. })));
    let again = store.pull("some/repo", &mut quiet).unwrap();
    assert_eq!(fs::read(again.path.parent().unwrap().join("tokenizer.json")).unwrap(), b"{ }");
}

#[test]
fn a_repository_that_cannot_be_run_or_listed_says_why() {
    let fail = |server: &Server| {
        let home = tempfile::tempdir().unwrap();
        store_at(server, &home).pull("hf:Some/Repo", &mut quiet).unwrap_err().to_string()
    };
    assert!(fail(&hub_with(vec![("README.md", b"#".to_vec())])).contains("nor config.json with safetensors"));
    assert!(fail(&Server::start(|_, _| Reply::status(401))).contains("HF_TOKEN"));
    let page = Server::start(|request, _| Reply::file(request, b"<html>", "\"a\""));
    assert!(fail(&page).contains("no listing of files"));
    let page = hub_with(vec![("config.json", b"<html>".to_vec()), ("model.safetensors", content(10))]);
    assert!(fail(&page).contains("does not begin like JSON"));
}
