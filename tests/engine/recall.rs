//! A memory of texts beside the model: what it changes, what it must not change, and what it is worth.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::support::{golden, run_together, smollm2};
use ruvllm_engine::{
    Core, HeldAdapter, Observed, PrefixUse, Recall, RecallItem, RecallSpace, Request, Sampled, Sampling, Speculation,
    TextToObserve,
};
use ruvllm_runtime::{Engine, Prompt};

const NOTE: &str = "Port Anselm is a town on the northern shore. Its ferry leaves at 6.40, 9.15 and 17.30; the last \
                    one does not run on Sundays. Tickets cost 12 crowns, and bicycles travel free of charge.";
const QUESTION: &str = "When does the ferry of Port Anselm leave?";

fn build(sequences: usize, batch_rows: usize, threads: usize) -> Engine {
    let builder = Engine::builder(smollm2()).context(Some(512)).sequences(sequences);
    builder.batch_rows(batch_rows).threads(Some(threads)).build().expect("the default model loads")
}

fn text(engine: &Engine, text: &str) -> Vec<u32> {
    engine.encode(&Prompt::Text(text.to_owned())).expect("encodable")
}

/// What the model makes of a text, some rows at a time.
fn observed(core: &mut Core, rows: usize) -> Observed {
    loop {
        if let Some(observed) = core.observe(rows).expect("sound rows") {
            return observed;
        }
    }
}

fn space(engine: &mut Engine) -> Arc<RecallSpace> {
    let tokens = golden().into_iter().flat_map(|prompt| prompt.tokens).take(400).collect();
    let mut core = engine.core();
    core.begin_measuring_space(tokens).expect("room for it");
    match observed(&mut core, 64) {
        Observed::Space(space) => Arc::new(space),
        Observed::Item(_) => panic!("a space was wanted"),
    }
}

fn text_of(tokens: Vec<u32>, first_target: usize, space: &Arc<RecallSpace>) -> TextToObserve {
    TextToObserve { tokens, first_target, space: Some(Arc::clone(space)), adapter: None }
}

fn item(engine: &mut Engine, space: &Arc<RecallSpace>, tokens: Vec<u32>, first: usize, rows: usize) -> Arc<RecallItem> {
    let mut core = engine.core();
    core.begin_observation(text_of(tokens, first, space)).expect("room for it");
    match observed(&mut core, rows) {
        Observed::Item(item) => Arc::new(item),
        Observed::Space(_) => panic!("an item was wanted"),
    }
}

/// A memory of a question with its answer, and of a few texts.
fn memory(engine: &mut Engine) -> Arc<Recall> {
    let space = space(engine);
    let mut recall = Recall::new(Some(Arc::clone(&space)));
    let question = text(engine, QUESTION);
    let tokens = [question.clone(), text(engine, NOTE)].concat();
    recall.add(item(engine, &space, tokens, question.len(), 64));
    for prompt in golden().into_iter().take(4).filter(|prompt| prompt.tokens.len() > 8) {
        let first = prompt.tokens.len() / 2;
        assert!(recall.add(item(engine, &space, prompt.tokens, first, 64)));
    }
    Arc::new(recall)
}

fn sampled(engine: &mut Engine, requests: &[Request]) -> Vec<Vec<Sampled>> {
    let all = run_together(engine, requests);
    all.into_iter().map(|events| events.into_iter().map(|event| event.sampled).collect()).collect()
}

fn tokens(sampled: &[Sampled]) -> Vec<u32> {
    sampled.iter().map(|one| one.token).collect()
}

#[test]
fn what_is_drawn_with_a_memory_depends_on_nothing_that_runs_beside_it() {
    let mut single = build(1, 128, 2);
    let recall = memory(&mut single);
    let mut prompts: Vec<Vec<u32>> = golden().into_iter().take(4).map(|prompt| prompt.tokens).collect();
    prompts.push(text(&single, QUESTION));
    prompts.push(text(&single, &format!("{NOTE}\n\nOnce more: Port Anselm is a town")));
    let drawn = Sampling { temperature: 0.7, seed: 3, ..Sampling::default() };
    let requests: Vec<Request> = (prompts.iter().enumerate())
        .map(|(i, prompt)| Request {
            sampling: if i % 3 == 2 { drawn.clone() } else { Sampling::greedy() },
            max_tokens: Some(20),
            // One in four does without, and must not mind.
            recall: (i % 4 != 3).then(|| Arc::clone(&recall)),
            speculation: Speculation::Off,
            ..Request::new(prompt.clone())
        })
        .collect();
    let uncached = |request: &Request| Request { prefix_use: PrefixUse::OFF, ..request.clone() };
    let expected: Vec<Vec<Sampled>> =
        requests.iter().flat_map(|request| sampled(&mut single, &[uncached(request)])).collect();
    let changed = requests.iter().zip(&expected).filter(|(request, expected)| {
        let alone = Request { recall: None, ..uncached(request) };
        tokens(&sampled(&mut single, &[alone])[0]) != tokens(expected)
    });
    assert!(changed.count() > 0, "the memory changes something");
    let shares = expected.iter().flatten().filter_map(|sampled| sampled.recall_share);
    assert!(shares.clone().all(|share| (0.0..=0.7001).contains(&share)) && shares.clone().any(|share| share > 0.3));
    let speculating: Vec<Request> =
        requests.iter().map(|request| Request { speculation: Speculation::On, ..request.clone() }).collect();
    // The second time, prompts are cached.
    for (sequences, batch_rows, threads) in [(4, 64, 3), (8, 40, 1)] {
        let mut engine = build(sequences, batch_rows, threads);
        for round in 0..2 {
            let got = sampled(&mut engine, &speculating);
            assert_eq!(got, expected, "{sequences} sequences on {threads} threads, round {round}");
        }
    }
}

#[test]
fn an_item_is_the_same_however_it_is_observed() {
    let mut engine = build(4, 128, 2);
    let space = space(&mut engine);
    let tokens = text(&engine, &format!("{QUESTION} {NOTE}"));
    let whole = item(&mut engine, &space, tokens.clone(), 12, 128);
    assert_eq!(item(&mut engine, &space, tokens.clone(), 12, 7), whole);
    // Beside a sequence that decodes, and after its pages were needed.
    let beside = {
        let mut core = engine.core();
        let prompt = golden().remove(0).tokens;
        core.submit(Request { max_tokens: Some(24), ..Request::new(prompt) }).expect("a sound request");
        core.begin_observation(text_of(tokens.clone(), 12, &space)).expect("room for it");
        loop {
            core.step().into_iter().for_each(|event| drop(event.expect("sound logits")));
            if let Some(Observed::Item(item)) = core.observe(5).expect("sound rows") {
                while !core.is_idle() {
                    core.step();
                }
                break item;
            }
        }
    };
    assert_eq!(beside, *whole);
    let mut core = engine.core();
    core.begin_observation(text_of(tokens, 12, &space)).expect("room for it");
    core.observe(10).expect("sound rows");
    core.end_observation();
    let stats = core.cache_stats();
    assert_eq!(stats.pages, stats.cached_pages, "all pages are given back or cached");
}

#[test]
fn an_item_is_what_the_model_makes_of_it_with_the_adapter_of_the_answers() {
    let mut engine = build(1, 128, 2);
    let trained = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/trained");
    let adapter = engine.adapters().register(trained).expect("it is the model's");
    let held = engine.adapters().hold(&[(adapter.id, 1.0)]).expect("there is room");
    let space = space(&mut engine);
    let text = text_of(text(&engine, &format!("{QUESTION} {NOTE}")), 12, &space);
    let mut observe = |adapter: Option<&HeldAdapter>, rows| {
        let mut core = engine.core();
        core.begin_observation(TextToObserve { adapter: adapter.cloned(), ..text.clone() }).expect("room for it");
        observed(&mut core, rows)
    };
    let (alone, with) = (observe(None, 128), observe(Some(&held), 128));
    assert_ne!(alone, with);
    assert_eq!(observe(Some(&held), 7), with, "some rows at a time");
    assert_eq!(observe(None, 128), alone);
    let id = held.id;
    drop(held);
    engine.adapters().unregister(id);
    assert!(engine.adapters().hold(&[(id, 1.0)]).is_err(), "nothing keeps it");
}

#[test]
fn a_text_that_cannot_be_observed_is_refused() {
    let mut engine = build(1, 128, 1);
    let mut core = engine.core();
    for (tokens, first_target) in [(vec![1, 2], 2), (vec![1, 2], 0), (vec![1; 600], 5), (vec![1, 1_000_000], 1)] {
        let text = TextToObserve { tokens, first_target, space: None, adapter: None };
        assert!(core.begin_observation(text).is_err());
    }
    assert_eq!(core.observe(8).expect("nothing to do"), None);
}

/// Where the texts of the measurement come from: the folders in a folder, or else those of this repository.
fn domains() -> Vec<(String, Vec<String>)> {
    let mut domains = Vec::new();
    if let Some(folder) = std::env::var_os("RUVLLM_RECALL_TEXTS") {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            domains.push((entry.file_name().to_string_lossy().into_owned(), texts(&entry.path(), "")));
        }
        domains.sort();
        return domains;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of = |name: &str, folder: &str, end: &str| (name.to_owned(), texts(&root.join(folder), end));
    vec![of("rust", "crates", ".rs"), of("documents", "docs", ".md"), of("python", "tests", ".py")]
}

fn texts(folder: &Path, end: &str) -> Vec<String> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()) {
            match entry.is_dir() {
                true => folders.push(entry),
                false if entry.to_string_lossy().ends_with(end) => files.push(entry),
                false => {}
            }
        }
    }
    files.sort();
    files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect()
}

/// Tokens of an item, and before its first target.
const ITEM: usize = 192;
const PROMPT: usize = 64;

/// Items of some documents and items of others, none of which shares 13 tokens in a row with the first.
fn items_of(engine: &Engine, documents: &[String], (known, held_out): (usize, usize)) -> [Vec<Vec<u32>>; 2] {
    let mut windows: Vec<Vec<Vec<u32>>> = Vec::new();
    for document in documents.iter().filter(|document| document.len() > 1500) {
        // From the middle: beginnings are licences and imports.
        let start = (document.len() / 3..).find(|at| document.is_char_boundary(*at)).unwrap_or(0);
        let rest: String = document[start..].chars().take(3000).collect();
        let of: Vec<Vec<u32>> = text(engine, &rest).chunks_exact(ITEM).take(2).map(<[u32]>::to_vec).collect();
        windows.extend((!of.is_empty()).then_some(of));
    }
    // Spread over all documents, always in the same way.
    let count = windows.len();
    let order = (0..count).map(|i| (i * 7919 + 13) % count);
    let mut seen = HashSet::new();
    let mut windows: Vec<Vec<Vec<u32>>> = order.filter(|at| seen.insert(*at)).map(|at| windows[at].clone()).collect();
    let held: Vec<Vec<u32>> = windows.split_off(count * 2 / 3).into_iter().flatten().collect();
    let known: Vec<Vec<u32>> = windows.into_iter().flatten().take(known).collect();
    let grams: HashSet<&[u32]> = known.iter().flat_map(|item| item.windows(13)).collect();
    let held = held.iter().filter(|item| item.windows(13).all(|gram| !grams.contains(gram)));
    [known.clone(), held.take(held_out).cloned().collect()]
}

/// Loss of texts that are not in the memory. A small one by default; RUVLLM_TEST_LARGE=1 measures 50 items of each
/// domain.
#[test]
fn a_memory_lowers_the_loss_of_other_texts_of_its_kind() {
    let is_large = std::env::var_os("RUVLLM_TEST_LARGE").is_some();
    let (sizes, held_out, count) = if is_large { (vec![10, 50], 30, 3) } else { (vec![10], 6, 1) };
    let mut engine = build(1, 128, 2);
    let space = space(&mut engine);
    let mut means = vec![0.0; sizes.len()];
    for (name, documents) in domains().into_iter().take(count) {
        let [known, held] = items_of(&engine, &documents, (*sizes.last().expect("a size"), held_out));
        let known: Vec<Arc<RecallItem>> =
            known.into_iter().map(|tokens| item(&mut engine, &space, tokens, PROMPT, 128)).collect();
        let held: Vec<Arc<RecallItem>> =
            held.into_iter().map(|tokens| item(&mut engine, &space, tokens, PROMPT, 128)).collect();
        let mut recall = Recall::new(Some(Arc::clone(&space)));
        for (index, item) in known.iter().enumerate() {
            recall.add(Arc::clone(item));
            let Some(size) = sizes.iter().position(|size| *size == index + 1) else { continue };
            let started = Instant::now();
            let scores = held.iter().map(|item| recall.score(item));
            let (alone, mixed) = scores.fold((0.0, 0.0), |(a, b), (alone, mixed)| (a + alone, b + mixed));
            let targets = held.iter().map(|item| item.targets()).sum::<usize>();
            let change = 100.0 * (mixed / alone - 1.0);
            println!(
                "{name}: {} items, {} held out: {:.4} nats alone, {:.4} with them ({change:+.2} %), {:?} a token",
                index + 1,
                held.len(),
                -alone / targets as f64,
                -mixed / targets as f64,
                started.elapsed() / targets as u32,
            );
            means[size] += change / count as f64;
        }
    }
    for (size, mean) in sizes.iter().zip(&means) {
        println!("mean of {size} items: {mean:+.2} %");
    }
    assert!(means.iter().all(|mean| *mean < 0.0), "{means:?}");
}
