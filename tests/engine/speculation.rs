//! Speculative decoding gives the very tokens of plain decoding, in fewer steps where a text repeats itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{golden, model, run_together, smollm2};
use ruvllm_engine::{
    Counts, DraftOptions, Event, FinishReason, KvOptions, PrefixUse, Request, Sampled, Sampling, Speculation, Tiers,
};
use ruvllm_kernels::{KernelSet, Pool};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::{CpuRunner, Model};
use ruvllm_runner::PageFormat;
use ruvllm_runtime::{Engine, KvChoice, Prompt};

const COPY: &str = "The ferry leaves Port Anselm at 6.40, 9.15 and 17.30; the last one does not run on Sundays. A ticket \
                    costs 12 crowns, half of it for children under eleven. Bicycles travel free of charge.\n\n\
                    Once more: The ferry leaves Port Anselm at";
const RENAME: &str = "```python\ndef area(box):\n    if box.width < 0 or box.height < 0:\n        return 0\n    return \
                      box.width * box.height\n```\n\nAfter renaming `box` to `frame`:\n\n```python\ndef area(frame):\n    if";
const JSON: &str = r#"[{"id": 1, "city": "Oslo", "rain": 3}, {"id": 2, "city": "Porto", "rain": 7}, {"id": 3, "city": "Graz", "rain": 5}]

One value on each line:

[
  {
    "id": 1,
    "city": "Oslo",
    "rain": 3
  },"#;

/// Prompts of different kinds: chats, plain text, code, JSON, copies and edits.
fn prompts(engine: &Engine) -> Vec<Vec<u32>> {
    let own = [COPY, RENAME, JSON].map(|text| engine.encode(&Prompt::Text(text.to_owned())).expect("encodable"));
    let names = ["counting", "recipe", "json", "chat_short", "chat_code", "one_word"];
    let others = golden().into_iter().filter(|prompt| names.contains(&prompt.name.as_str()));
    let all: Vec<_> = own.into_iter().chain(others.map(|prompt| prompt.tokens)).collect();
    assert_eq!(all.len(), 9);
    all
}

fn build(context: usize, sequences: usize, batch_rows: usize, threads: usize) -> Engine {
    let builder = Engine::builder(smollm2()).context(Some(context)).sequences(sequences);
    builder.batch_rows(batch_rows).threads(Some(threads)).build().expect("the default model loads")
}

fn request(prompt: &[u32], sampling: Sampling, max_tokens: usize, speculation: Speculation) -> Request {
    Request { sampling, max_tokens: Some(max_tokens), speculation, ..Request::new(prompt.to_vec()) }
}

/// What a sequence gave: its tokens with their logprobs, why it ended, and what it took.
#[derive(Debug, Default, PartialEq)]
struct Text {
    sampled: Vec<Sampled>,
    finish: Option<FinishReason>,
    counts: Counts,
}

impl Text {
    fn add(&mut self, event: Event) {
        assert_eq!(self.finish, None, "nothing follows the end");
        self.sampled.push(event.sampled);
        self.finish = event.finish;
        self.counts = event.counts;
    }

    fn tokens(&self) -> Vec<u32> {
        self.sampled.iter().map(|sampled| sampled.token).collect()
    }

    /// Without what speculation may change.
    fn result(&self) -> (&[Sampled], Option<FinishReason>) {
        (&self.sampled, self.finish)
    }
}

fn together(engine: &mut Engine, requests: &[Request]) -> Vec<Text> {
    let texts = run_together(engine, requests).into_iter().map(|events| {
        let mut text = Text::default();
        events.into_iter().for_each(|event| text.add(event));
        text
    });
    texts.collect()
}

fn alone(engine: &mut Engine, request: &Request) -> Text {
    together(engine, std::slice::from_ref(request)).remove(0)
}

fn with(speculation: Speculation, request: &Request) -> Request {
    Request { speculation, ..request.clone() }
}

/// Every request alone without speculation; with it alone and in company, on other numbers of threads.
fn check_same(requests: &[Request]) {
    let mut single = build(512, 1, 128, 2);
    let expected: Vec<Text> =
        requests.iter().map(|request| alone(&mut single, &with(Speculation::Off, request))).collect();
    assert!(expected.iter().all(|text| text.counts.drafted == 0 && text.counts.steps == text.sampled.len()));
    let check = |got: &[Text], how: &str| {
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got.result(), expected.result(), "request {i} {how}");
        }
        let accepted: usize = got.iter().map(|text| text.counts.accepted).sum();
        println!("{how}: {accepted} guesses were right");
        assert!(accepted > 0, "nothing was guessed {how}");
    };
    check(&requests.iter().map(|request| alone(&mut single, request)).collect::<Vec<_>>(), "alone");
    for (sequences, batch_rows, threads) in [(4, 64, 3), (8, 40, 1)] {
        // Every third one does without: it must not mind the others' guesses.
        let speculation = |i: usize| if i % 3 == 2 { Speculation::Off } else { Speculation::On };
        let mixed: Vec<Request> =
            requests.iter().enumerate().map(|(i, request)| with(speculation(i), request)).collect();
        let got = together(&mut build(512, sequences, batch_rows, threads), &mixed);
        check(&got, &format!("with {sequences} sequences on {threads} threads"));
    }
}

#[test]
fn guesses_see_pages_in_the_formats_of_plain_decoding() {
    let tiers = "f16:32,q8:64,q8/q4".parse().expect("sound tiers");
    let builder = Engine::builder(smollm2()).context(Some(512)).kv(KvChoice::Tiers(tiers));
    let mut engine = builder.build().expect("the default model loads");
    for text in [COPY, JSON] {
        let prompt = engine.encode(&Prompt::Text(text.to_owned())).expect("encodable");
        let plain = request(&prompt, Sampling::greedy(), 64, Speculation::Off);
        let plain = Request { prefix_use: PrefixUse::OFF, ..plain };
        let expected = alone(&mut engine, &plain);
        let got = alone(&mut engine, &with(Speculation::On, &plain));
        assert_eq!(got.result(), expected.result());
        assert!(got.counts.accepted > 8, "{:?}", got.counts);
    }
}

#[test]
fn greedy_tokens_are_those_of_plain_decoding() {
    let engine = build(512, 1, 128, 1);
    let sampling = |i: usize| Sampling { top_logprobs: i.is_multiple_of(4).then_some(3), ..Sampling::greedy() };
    let requests: Vec<Request> = prompts(&engine)
        .iter()
        .enumerate()
        .map(|(i, prompt)| request(prompt, sampling(i), 32, Speculation::On))
        .collect();
    check_same(&requests);
}

#[test]
fn drawn_tokens_are_those_of_plain_decoding_with_the_same_seed() {
    let engine = build(512, 1, 128, 1);
    let plain = Sampling::default();
    let variants = [
        Sampling { temperature: 0.3, ..plain.clone() },
        Sampling { temperature: 0.6, top_k: 0, top_p: 0.9, ..plain.clone() },
        Sampling { temperature: 1.0, top_k: 20, min_p: 0.0, frequency_penalty: 0.1, ..plain.clone() },
        Sampling { temperature: 0.4, repetition_penalty: 1.05, presence_penalty: 0.1, ..plain.clone() },
        Sampling { temperature: 0.7, typical_p: 0.9, top_logprobs: Some(2), ..plain },
    ];
    let sampling = |i: usize| Sampling { seed: i as u64 * 7 + 1, ..variants[i % variants.len()].clone() };
    let requests: Vec<Request> = prompts(&engine)
        .iter()
        .enumerate()
        .map(|(i, prompt)| request(prompt, sampling(i), 24, Speculation::On))
        .collect();
    check_same(&requests);
}

#[test]
fn a_copy_takes_less_than_half_the_steps() {
    let mut engine = build(512, 1, 128, 2);
    for text in [COPY, JSON] {
        let prompt = engine.encode(&Prompt::Text(text.to_owned())).expect("encodable");
        let text = alone(&mut engine, &request(&prompt, Sampling::greedy(), 48, Speculation::Auto));
        let Counts { steps, drafted, accepted, .. } = text.counts;
        println!("{} tokens in {steps} steps, {accepted} of {drafted} guesses right", text.sampled.len());
        assert!(steps * 2 <= text.sampled.len(), "{steps} steps");
    }
}

#[test]
fn text_that_does_not_repeat_wastes_few_rows() {
    let mut engine = build(512, 1, 128, 2);
    let prompt: Vec<u32> = (0..200).map(|i| (i * i * 7 + i * 13) % 40 + 1000).collect();
    let sampling = Sampling { temperature: 2.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 3, ..Sampling::default() };
    let text = alone(&mut engine, &request(&prompt, sampling.clone(), 120, Speculation::On));
    let Counts { steps, drafted, accepted, .. } = text.counts;
    println!("{steps} steps, {accepted} of {drafted} guesses right");
    // Without durations, a row counts as a quarter of a step. The allowance is one step and a hundredth of the tokens.
    assert!(drafted as f64 * 0.25 - accepted as f64 <= 1.0 + 0.01 * 120.0, "{drafted} guessed, {accepted} right");
    let auto = alone(&mut engine, &request(&prompt, sampling, 8, Speculation::Auto));
    assert_eq!(auto.counts, Counts { steps: 8, ..Counts::default() }, "hot draws are not guessed");
}

#[test]
fn any_length_and_any_end_token_cut_a_run_as_they_cut_plain_decoding() {
    let mut engine = build(512, 1, 128, 2);
    let prompt = engine.encode(&Prompt::Text(COPY.to_owned())).expect("encodable");
    let whole = alone(&mut engine, &request(&prompt, Sampling::greedy(), 30, Speculation::Off)).tokens();
    for max_tokens in 1..=12 {
        let text = alone(&mut engine, &request(&prompt, Sampling::greedy(), max_tokens, Speculation::On));
        assert_eq!((&text.tokens()[..], text.finish), (&whole[..max_tokens], Some(FinishReason::Length)));
    }
    for end in &whole[..12] {
        let first = whole.iter().position(|token| token == end).expect("it is there");
        let mut request = request(&prompt, Sampling::greedy(), 30, Speculation::On);
        request.end_tokens = vec![*end];
        let text = alone(&mut engine, &request);
        assert_eq!((&text.tokens()[..], text.finish), (&whole[..=first], Some(FinishReason::Stop)));
    }
}

#[test]
fn a_run_ends_with_the_context() {
    let mut engine = build(96, 1, 128, 2);
    // A text that goes round in circles; 43 tokens, so that the last page is not full.
    let prompt: Vec<u32> = (0..43).map(|i| 500 + i % 6).collect();
    let mut whole = request(&prompt, Sampling::greedy(), 1, Speculation::On);
    whole.max_tokens = None;
    let text = alone(&mut engine, &whole);
    assert_eq!((text.sampled.len(), text.finish), (96 - 43, Some(FinishReason::Length)));
    assert!(text.counts.accepted > 20, "{:?}", text.counts);
    let plain = alone(&mut engine, &with(Speculation::Off, &whole));
    assert_eq!(text.result(), plain.result());
}

#[test]
fn a_sequence_cancelled_after_a_run_frees_its_pages_and_leaves_the_others_alone() {
    let mut engine = build(512, 2, 128, 2);
    let prompt = engine.encode(&Prompt::Text(COPY.to_owned())).expect("encodable");
    let kept = request(&prompt, Sampling::greedy(), 30, Speculation::On);
    let expected = alone(&mut engine, &kept);
    let core = &mut engine.core();
    let dropped =
        core.submit(request(&prompt, Sampling { seed: 5, ..Sampling::greedy() }, 200, Speculation::On)).unwrap();
    let id = core.submit(kept).unwrap();
    let (mut text, mut runs) = (Text::default(), 0);
    while !core.is_idle() {
        let events: Vec<Event> = core.step().into_iter().map(|event| event.unwrap()).collect();
        if events.iter().filter(|event| event.sequence == dropped).count() > 1 {
            core.cancel(dropped);
            runs += 1;
        }
        events.into_iter().filter(|event| event.sequence == id).for_each(|event| text.add(event));
    }
    assert_eq!(runs, 1, "it was cancelled after its first run and never seen again");
    assert_eq!(text.result(), expected.result());
    let stats = core.cache_stats();
    assert_eq!(stats.pages, stats.cached_pages, "all pages are given back or cached");
}

#[test]
fn streams_stop_and_count_the_same_in_the_middle_of_a_run() {
    let engine = build(512, 1, 128, 2);
    let mut check = |stop: &str| {
        let answer = |speculation| {
            let mut request = ruvllm_runtime::Request::new(Prompt::Text(COPY.to_owned()));
            request.sampling = Sampling::greedy();
            request.max_tokens = Some(40);
            request.stop = vec![stop.to_owned()];
            request.speculation = speculation;
            let mut stream = engine.stream(request).expect("a sound request");
            let pieces: Vec<String> =
                (&mut stream).map(|piece| piece.expect("sound logits").text().to_owned()).collect();
            let response = stream.into_response();
            assert_eq!(pieces.len(), response.tokens.len(), "a piece for each token");
            assert_eq!(pieces.concat(), response.text);
            response
        };
        let (plain, guessed) = (answer(Speculation::Off), answer(Speculation::On));
        assert_eq!((&guessed.text, &guessed.tokens), (&plain.text, &plain.tokens));
        assert_eq!(guessed.finish_reason, plain.finish_reason);
        assert_eq!(guessed.usage.completion_tokens, plain.usage.completion_tokens);
        assert_eq!((plain.usage.steps, plain.usage.drafted_tokens), (plain.tokens.len(), 0));
        assert!(guessed.usage.steps < plain.usage.steps && guessed.usage.accepted_tokens > 0);
    };
    ["17.30", "Sundays", "crowns,", "never in the text"].into_iter().for_each(&mut check);
}

/// Adds the model as its own draft model, as if that cost next to nothing: it is right whenever nothing is drawn.
fn add_draft(engine: &mut Engine) {
    let gguf = Gguf::open(smollm2()).expect("a sound file");
    let model = Model::load(&gguf, 512, &mut |_| {}).expect("a sound model");
    let runner = CpuRunner::new(Arc::new(model), Pool::new(1, KernelSet::best()), 32);
    let kv = KvOptions { budget_bytes: 64 << 20, ..KvOptions::new(Tiers::uniform(PageFormat::F16)) };
    engine.core().set_draft_model(Box::new(runner), &DraftOptions { kv, fingerprint: [7; 32], cost: 0.05 });
}

#[test]
fn a_draft_model_gives_the_same_tokens_in_fewer_steps() {
    let mut plain = build(512, 3, 128, 2);
    let mut drafted = build(512, 3, 128, 2);
    add_draft(&mut drafted);
    let drawn = Sampling { temperature: 0.8, seed: 5, ..Sampling::default() };
    for (sampling, share_min) in [(Sampling::greedy(), 0.8), (drawn, 0.2)] {
        let requests: Vec<Request> = (prompts(&plain).iter().skip(3).take(5))
            .map(|prompt| request(prompt, sampling.clone(), 40, Speculation::On))
            .collect();
        let expected: Vec<Text> =
            requests.iter().map(|request| alone(&mut plain, &with(Speculation::Off, request))).collect();
        // Alone, then two at a time; the second time its texts are cached.
        let mut got: Vec<Text> = requests.iter().map(|request| alone(&mut drafted, request)).collect();
        got.extend(requests.chunks(2).flat_map(|pair| together(&mut drafted, pair)));
        for (i, got) in got.iter().enumerate() {
            assert_eq!(got.result(), expected[i % expected.len()].result(), "request {i}");
        }
        let sum = |count: fn(&Counts) -> usize| got.iter().map(|text| count(&text.counts)).sum::<usize>();
        let (right, all) = (sum(|counts| counts.accepted_by_model), sum(|counts| counts.drafted_by_model));
        println!("{right} of {all} in {} steps", sum(|counts| counts.steps));
        assert!(all > 50 && right as f64 > share_min * all as f64, "{right} of {all}");
    }
}

#[test]
fn a_draft_model_with_other_tokens_or_recurrent_layers_is_refused() {
    let golden = |name: &str| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/architectures");
        root.join(name).join("model.gguf")
    };
    for (draft, reason) in [
        (golden("lfm2"), "recurrent layers"),
        (golden("qwen3"), "cannot draft for this model"),
        (model("gemma3:270m"), "must share a vocabulary"),
        (PathBuf::from("nowhere.gguf"), "nowhere.gguf cannot draft"),
    ] {
        let error = Engine::builder(smollm2()).draft_model(Some(draft)).build().expect_err("it does not fit");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let own = Engine::builder(smollm2()).context(Some(256)).draft_model(Some(smollm2()));
    let memory = own.memory().expect("it can be worked out");
    let alone = Engine::builder(smollm2()).context(Some(256)).memory().expect("it can be worked out");
    assert!(memory.weights_bytes > 2 * alone.weights_bytes, "it is counted");
    let answer =
        own.build().expect("both load").generate(ruvllm_runtime::Request::new(Prompt::Text("One, two,".into())));
    assert!(!answer.expect("an answer").text.is_empty());
}
