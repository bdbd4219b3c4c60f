//! Mean hidden states of the default model as embeddings: right, the same however they were come by, and of use.

use crate::support;
use std::ops::Range;
use std::sync::OnceLock;

use crate::candle_oracle::Oracle;
use crate::support::{run_together, smollm2};
use ruvllm_engine::{Event, HiddenStates, PrefixUse, Request, Speculation};
use ruvllm_kernels::dequantize_row;
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_runtime::{Engine, Message, Prompt, SubmitError};

fn build(sequences: usize, batch_rows: usize) -> Engine {
    let builder = Engine::builder(smollm2()).context(Some(1024)).sequences(sequences).batch_rows(batch_rows);
    builder.keep_hidden_states(true).build().expect("the default model loads")
}

fn tokens(engine: &Engine, text: &str) -> Vec<u32> {
    engine.encode(&Prompt::Text(text.to_owned())).expect("plain text")
}

fn request(prompt: Vec<u32>, of: Range<usize>) -> Request {
    Request { max_tokens: Some(24), states_of: Some(of), ..Request::new(prompt) }
}

fn states(events: &[Event]) -> Vec<&HiddenStates> {
    events.iter().map(|event| &**event.states.as_ref().expect("they were asked for")).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Logits are the output matrix times the state, so the mean of another implementation's logits is the matrix times the
/// mean state.
#[test]
fn mean_states_give_the_mean_logits_of_another_implementation() {
    let mut engine = build(1, 128);
    let mut oracle = Oracle::load(&smollm2()).expect("candle reads it");
    let gguf = Gguf::open(smollm2()).expect("a sound file");
    let matrix = gguf.tensor("token_embd.weight").expect("the output matrix is the embedding");
    let (hidden, row_bytes) = (matrix.dims[0], matrix.bytes_len() / matrix.dims[1]);
    for text in ["The Moon pulls at the oceans, and twice a day they", "def add(a, b):\n    return a + b\n\nprint(add("]
    {
        let prompt = tokens(&engine, text);
        // Candle takes seconds for each.
        let of = prompt.len() - 3..prompt.len() - 1;
        let events = run_together(&mut engine, &[request(prompt.clone(), of.clone())]).remove(0);
        let mean = states(&events)[0].prompt.clone().expect("with the first token");
        let mut row = vec![0f32; hidden];
        let got: Vec<f32> = matrix
            .bytes()
            .chunks_exact(row_bytes)
            .map(|bytes| {
                dequantize_row(matrix.kind, bytes, &mut row);
                row.iter().zip(&mean).map(|(weight, x)| weight * x).sum()
            })
            .collect();
        let mut expected = vec![0f32; got.len()];
        for end in of {
            let logits = oracle.logits(&prompt[..=end]).expect("candle runs it");
            expected.iter_mut().zip(logits).for_each(|(sum, logit)| *sum += logit);
        }
        let distance = 1.0 - cosine(&got, &expected);
        println!("{distance:.5} from candle");
        assert!(distance < 1e-3, "{text}: {distance}");
    }
}

/// To the bit, as all results with one KV format.
#[test]
fn states_do_not_depend_on_company_chunks_caches_or_guesses() {
    let mut engine = build(4, 128);
    let shared = tokens(&engine, &include_str!("../data/essays.txt")[..1200]);
    let prompts: Vec<Vec<u32>> =
        [(200, " In short,"), (131, " and so"), (200, " The"), (48, " one, two, three, one, two,")]
            .map(|(len, end)| [&shared[..len], &tokens(&engine, end)].concat())
            .to_vec();
    // Spans that begin and end in and between pages.
    let spans = [37..150, 0..131, 128..200, 30..48];
    let requests: Vec<Request> = prompts.into_iter().zip(spans).map(|(prompt, of)| request(prompt, of)).collect();
    let alone =
        |request: &Request| Request { prefix_use: PrefixUse::OFF, speculation: Speculation::Off, ..request.clone() };
    let expected: Vec<Vec<Event>> =
        requests.iter().map(|request| run_together(&mut engine, &[alone(request)]).remove(0)).collect();
    assert!(expected.iter().all(|events| states(events)[0].prompt.is_some() && states(events)[1].prompt.is_none()));
    let speculating: Vec<Request> =
        requests.iter().map(|request| Request { speculation: Speculation::On, ..request.clone() }).collect();
    let narrow = build(4, 24);
    for (name, engine, requests) in [
        ("together, nothing cached", &engine, requests.iter().map(alone).collect()),
        ("together", &engine, requests.clone()),
        ("cached", &engine, requests.clone()),
        ("guessing", &engine, speculating),
        ("in chunks", &narrow, requests.clone()),
    ] {
        let got = run_together(&mut engine.clone(), &requests);
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert!(states(got) == states(expected), "{name}, request {i}");
        }
    }
}

#[test]
fn keeping_states_changes_no_answer() {
    let mut plain = Engine::builder(smollm2()).context(Some(1024)).sequences(4).build().expect("it loads");
    let mut keeping = build(4, 128);
    let essays = include_str!("../data/essays.txt");
    let prompts: Vec<Request> = [0, 300, 700]
        .map(|at| Request { max_tokens: Some(48), ..Request::new(tokens(&plain, &essays[at..at + 500])) })
        .to_vec();
    for _ in 0..2 {
        assert_eq!(run_together(&mut plain, &prompts), run_together(&mut keeping, &prompts));
    }
    let of_prompts: Vec<Request> =
        prompts.into_iter().map(|request| Request { states_of: Some(1..9), ..request }).collect();
    assert_eq!(plain.core().submit(of_prompts[0].clone()), Err(SubmitError::NoStates));
}

#[test]
fn states_outlive_the_process_with_their_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |keep: bool| {
        let disk = support::disk(folder.path());
        let builder = Engine::builder(smollm2()).context(Some(1024)).disk(Some(disk)).keep_hidden_states(keep);
        builder.build().expect("it loads")
    };
    let mut engine = open(true);
    let prompt = tokens(&engine, &include_str!("../data/essays.txt")[..1500]);
    let request = request(prompt.clone(), 20..prompt.len() - 20);
    let expected = run_together(&mut engine, std::slice::from_ref(&request)).remove(0);
    drop(engine);
    // Whoever has no use for the states finds the pages too.
    let ask = |engine: &mut Engine, request: &Request| run_together(engine, std::slice::from_ref(request)).remove(0);
    let without = ask(&mut open(false), &Request { states_of: None, ..request.clone() });
    assert!(without[0].prefix.as_ref().is_some_and(|report| report.loaded_tokens > 200));
    let got = ask(&mut open(true), &request);
    assert!(got[0].prefix.as_ref().is_some_and(|report| report.loaded_tokens > 200));
    assert!(states(&got) == states(&expected));
}

const TOPICS: &str = include_str!("../data/topics.txt");
/// Topics that share words and places.
const NEAR_TOPICS: &str = include_str!("../data/near_topics.txt");

/// Sentences with their topics.
fn sentences(file: &str) -> Vec<(usize, &str)> {
    let mut topic = 0;
    let mut sentences = Vec::new();
    for line in file.lines() {
        if line.starts_with('#') { topic += 1 } else { sentences.push((topic, line)) }
    }
    sentences
}

fn embeddings(sentences: &[(usize, &str)]) -> Vec<Vec<f32>> {
    let engine = build(1, 128);
    sentences.iter().map(|(_, text)| engine.embed(text).expect("a text")).collect()
}

/// Of topics that are far from each other; two tests ask for them.
fn topics() -> &'static [Vec<f32>] {
    static ALL: OnceLock<Vec<Vec<f32>>> = OnceLock::new();
    ALL.get_or_init(|| embeddings(&sentences(TOPICS)))
}

/// By chance it would be 7 of 39.
#[test]
fn the_nearest_sentence_is_mostly_of_the_same_topic() {
    let near = embeddings(&sentences(NEAR_TOPICS));
    for (name, file, embeddings, percent_min) in [("far", TOPICS, topics(), 90), ("near", NEAR_TOPICS, &near, 50)] {
        let sentences = sentences(file);
        let nearest = |of: usize| {
            let others = (0..sentences.len()).filter(|other| *other != of);
            let near = |other: usize| cosine(&embeddings[of], &embeddings[other]);
            others.max_by(|a, b| near(*a).total_cmp(&near(*b))).expect("there are others")
        };
        let hits = (0..sentences.len()).filter(|of| sentences[nearest(*of)].0 == sentences[*of].0).count();
        println!("{name} topics: {hits} of {} sentences are nearest to one of their own", sentences.len());
        assert!(hits * 100 >= sentences.len() * percent_min, "{name} topics: {hits} of {}", sentences.len());
    }
}

/// What a request asks finds what it is about, whatever the instructions before it.
#[test]
fn a_prompt_finds_the_sentence_that_it_asks_for() {
    let engine = build(1, 128);
    let (sentences, embeddings) = (sentences(TOPICS), topics());
    let system =
        "You are the assistant of a small library. Answer briefly and kindly, and say so when you do not know.";
    let questions: Vec<_> =
        include_str!("../data/questions.txt").lines().filter_map(|line| line.split_once(" | ")).collect();
    let (mut first, mut among_three) = (0, 0);
    for (question, answer) in &questions {
        let messages = vec![Message::system(system), Message::user(question)];
        let request = ruvllm_runtime::Request {
            max_tokens: Some(1),
            embeddings: true,
            ..ruvllm_runtime::Request::new(Prompt::Messages(messages))
        };
        let asked = engine.generate(request).expect("it answers").embeddings.prompt.expect("as asked for");
        let expected = sentences.iter().position(|(_, text)| text == answer).expect("it is one of them");
        let nearer = embeddings.iter().filter(|other| cosine(&asked, other) > cosine(&asked, &embeddings[expected]));
        let nearer = nearer.count();
        first += usize::from(nearer == 0);
        among_three += usize::from(nearer < 3);
    }
    println!("{first} of {} are the nearest, {among_three} among the nearest three", questions.len());
    assert!(among_three * 2 >= questions.len(), "{among_three} of {}", questions.len());
}

/// The subject is the same with other instructions before it and other messages behind it.
#[test]
fn a_response_carries_the_embeddings_of_prompt_and_answer() {
    let engine = build(1, 128);
    let ask = |messages: Vec<Message>, stop: &[&str]| {
        let request = ruvllm_runtime::Request {
            max_tokens: Some(40),
            stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
            embeddings: true,
            ..ruvllm_runtime::Request::new(Prompt::Messages(messages))
        };
        engine.generate(request).expect("it answers").embeddings
    };
    let question = "How do black holes bend light?";
    let first = ask(vec![Message::user(question)], &[]);
    let again = ask(vec![Message::user(question)], &[]);
    assert_eq!(first, again, "cached");
    let (prompt, answer) = (first.prompt.expect("as asked for"), first.answer.expect("as asked for"));
    assert_eq!(prompt, engine.embed(question).expect("a text"), "the same tokens");
    assert!(
        (cosine(&prompt, &prompt) - 1.0).abs() < 1e-6 && (prompt.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4
    );
    let stopped = ask(vec![Message::user(question)], &["e"]);
    assert!(stopped.answer.is_some_and(|stopped| cosine(&stopped, &answer) > 0.3), "a stop string ends it early");
}
