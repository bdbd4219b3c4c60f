//! What was computed once is not computed again, and nobody can tell by the answers.

use crate::support;
use crate::support::{run_together, smollm2};
use ruvllm_engine::{PrefixUse, Request, Tenant};
use ruvllm_runtime::{DiskStore, Engine, KvChoice, Message, Prompt, Quota, Tiers};

fn build(sequences: usize, tiers: &str, disk: Option<DiskStore>) -> Engine {
    let tiers: Tiers = tiers.parse().expect("sound tiers");
    let builder =
        Engine::builder(smollm2()).context(Some(2048)).sequences(sequences).kv(KvChoice::Tiers(tiers)).disk(disk);
    builder.build().expect("the default model loads")
}

/// A text of `count` tokens.
fn text(engine: &Engine, count: usize) -> Vec<u32> {
    let essays = include_str!("../data/essays.txt");
    let tokens = engine.encode(&Prompt::Text(essays[..count * 8].to_owned())).expect("plain text");
    tokens[..count].to_vec()
}

fn question(engine: &Engine, text: &str) -> Vec<u32> {
    engine.encode(&Prompt::Text(text.to_owned())).expect("plain text")
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), ..Request::new(prompt) }
}

fn answers(engine: &mut Engine, requests: &[Request]) -> Vec<Vec<u32>> {
    let events = run_together(engine, requests);
    events.iter().map(|events| events.iter().map(|event| event.sampled.token).collect()).collect()
}

#[test]
fn cached_answers_are_computed_ones_token_for_token() {
    for tiers in ["f16", "q8"] {
        let mut engine = build(4, tiers, None);
        let shared = text(&engine, 300);
        let questions = ["\n\nIn short,", "\n\nThe author says that", "\n\nThe", " and so on."];
        // Prompts that leave the shared text at different places, in and between pages.
        let prompts: Vec<Vec<u32>> = questions
            .iter()
            .zip([300, 256, 131, 300])
            .map(|(end, len)| [&shared[..len], &question(&engine, end)].concat())
            .collect();
        let requests: Vec<Request> = prompts.into_iter().map(|prompt| request(prompt, 24)).collect();
        let alone: Vec<Request> =
            requests.iter().map(|request| Request { prefix_use: PrefixUse::OFF, ..request.clone() }).collect();
        let expected = answers(&mut engine, &alone);
        assert_eq!(engine.core().cache_stats().lookups.lookups, 0);
        for round in 0..2 {
            assert_eq!(answers(&mut engine, &requests), expected, "{tiers}, round {round}");
        }
        // A second turn: the answer and what follows it.
        let next = |i: usize| [&requests[i].prompt[..], &expected[i], &question(&engine, " Why?")].concat();
        let turns: Vec<Request> = (0..4).map(|i| request(next(i), 16)).collect();
        let alone: Vec<Request> =
            turns.iter().map(|request| Request { prefix_use: PrefixUse::OFF, ..request.clone() }).collect();
        let got = run_together(&mut engine, &turns);
        for (events, turn) in got.iter().zip(&turns) {
            let cached = events[0].prefix.as_ref().expect("the first event reports").cached_tokens;
            assert!(cached + 16 >= turn.prompt.len() - 4, "{cached} of {} tokens were cached", turn.prompt.len());
        }
        let got: Vec<Vec<u32>> =
            got.iter().map(|events| events.iter().map(|event| event.sampled.token).collect()).collect();
        assert_eq!(got, answers(&mut engine, &alone), "{tiers}, second turns");
    }
}

#[test]
fn eight_clients_at_once_compute_their_common_prefix_once() {
    let mut engine = build(8, "f16", None);
    let shared = text(&engine, 1000);
    let prompt = |i: usize| [&shared[..], &question(&engine, &format!("\n\nQuestion {i}:"))].concat();
    let requests: Vec<Request> = (0..8).map(|i| request(prompt(i), 16)).collect();
    let own: usize = requests.iter().map(|request| request.prompt.len() - 1000).sum();
    let ids: Vec<_> = requests.iter().map(|request| engine.core().submit(request.clone()).unwrap()).collect();
    let mut tokens = 0;
    while !engine.core().is_idle() {
        for event in engine.core().step() {
            event.expect("sound logits");
            tokens += 1;
        }
    }
    assert_eq!(tokens, ids.len() * 16);
    let lookups = engine.core().cache_stats().lookups;
    let computed = (lookups.tokens - lookups.tokens_saved) as usize;
    // The shared text ends within a page, whose first tokens each of them computes.
    assert!(computed <= 1000 + own + 7 * 16, "{computed} tokens were computed");
}

#[test]
fn a_hundred_requests_with_one_instruction_take_a_fifth_of_the_work() {
    let mut engine = build(8, "f16", None);
    let instruction = text(&engine, 50);
    let prompt = |i: usize| [&instruction[..], &question(&engine, &format!(" item {i}"))].concat();
    let requests: Vec<Request> = (0..100).map(|i| request(prompt(i), 2)).collect();
    answers(&mut engine, &requests);
    let lookups = engine.core().cache_stats().lookups;
    let computed = lookups.tokens - lookups.tokens_saved;
    assert!(computed * 5 <= lookups.tokens, "{computed} of {} tokens were computed", lookups.tokens);
    assert_eq!((lookups.lookups, lookups.misses), (100, 1));
}

#[test]
fn a_miss_is_explained() {
    let engine = build(1, "f16", None);
    let ask = |time: &str| {
        let system = format!("You are a helpful assistant. The time is {time}. Answer in one sentence.");
        let messages = vec![Message::system(&system), Message::user("What is a radix tree?")];
        let request =
            ruvllm_runtime::Request { max_tokens: Some(4), ..ruvllm_runtime::Request::new(Prompt::Messages(messages)) };
        engine.generate(request).expect("it answers")
    };
    assert_eq!(ask("2026-11-15 00:12").divergence, None);
    let second = ask("2026-11-15 00:13");
    let divergence = second.divergence.expect("the time differs");
    assert!(divergence.cached.starts_with("2. Answer"), "{divergence}");
    assert!(divergence.asked.starts_with("3. Answer"), "{divergence}");
    assert_eq!(second.usage.cached_tokens, divergence.at);
    let same = ask("2026-11-15 00:13");
    assert_eq!((same.divergence, same.usage.cached_tokens), (None, same.usage.prompt_tokens - 1));
}

#[test]
fn tenants_do_not_see_each_others_prefixes() {
    let mut engine = build(1, "f16", None);
    let prompt = text(&engine, 100);
    let mut cached = |tenant: &str| {
        let request = Request { tenant: Tenant::new(tenant), ..request(prompt.clone(), 1) };
        let events = run_together(&mut engine, &[request]).remove(0);
        events[0].prefix.as_ref().expect("the first event reports").cached_tokens
    };
    assert_eq!([cached("a"), cached("b"), cached("a")], [0, 0, 99]);

    let builder = Engine::builder(smollm2()).context(Some(512)).share_prefixes(true);
    let mut engine = builder.build().expect("the default model loads");
    let mut ask = |tenant: &str, end: &str| {
        let prompt = [&prompt[..], &question(&engine, end)].concat();
        let request = Request { tenant: Tenant::new(tenant), ..request(prompt, 1) };
        run_together(&mut engine, &[request]).remove(0)[0].prefix.clone().expect("the first event reports")
    };
    ask("a", " My secret is 42.");
    let report = ask("b", " What is it?");
    assert!(report.cached_tokens >= 96, "{report:?}");
    assert!(
        report.divergence.is_some_and(|divergence| divergence.cached.is_empty()),
        "nobody's text is shown to others"
    );
}

#[test]
fn a_quiet_tenant_keeps_its_share_while_another_floods_the_cache() {
    let budget = 64 << 20;
    let quota = Quota { guaranteed_bytes: 16 << 20, limit_bytes: None };
    let builder = Engine::builder(smollm2()).context(Some(1024)).kv_budget_bytes(Some(budget));
    let mut engine = builder.quota(Tenant::new("quiet"), quota).build().expect("the default model loads");
    let mut cached = |tenant: &str, from: usize| {
        let prompt = text(&engine, from + 400)[from..].to_vec();
        let request = Request { tenant: Tenant::new(tenant), ..request(prompt, 1) };
        let events = run_together(&mut engine, &[request]).remove(0);
        events[0].prefix.as_ref().expect("the first event reports").cached_tokens
    };
    assert_eq!(cached("quiet/mornings", 0), 0);
    for round in 1..8 {
        assert_eq!(cached("busy", round * 200), 0);
    }
    assert_eq!(cached("busy", 200), 0, "the other's first texts had to go");
    assert_eq!(cached("quiet/mornings", 0), 399);
    let lookups: Vec<(String, u64)> =
        engine.core().tenants().map(|(tenant, lookups)| (tenant.name().to_owned(), lookups.lookups)).collect();
    assert_eq!(lookups, [("busy".to_owned(), 8), ("quiet/mornings".to_owned(), 2)]);

    let greedy = Quota { guaranteed_bytes: 40 << 20, limit_bytes: None };
    let builder = Engine::builder(smollm2()).context(Some(1024)).kv_budget_bytes(Some(budget));
    let refused = builder.quota(Tenant::new("greedy"), greedy).build().expect_err("more than half");
    assert!(refused.to_string().contains("lower them or raise the budget"), "{refused}");
}

#[test]
fn a_chat_goes_on_after_a_restart_from_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = || Some(support::disk(folder.path()));
    let mut engine = build(1, "f16", disk());
    let prompt = text(&engine, 500);
    let first = answers(&mut engine, &[request(prompt.clone(), 40)]).remove(0);
    while engine.core().save(64) > 0 {}
    // As if it had been killed: nothing is done at its end.
    std::mem::forget(engine);
    let mut engine = build(1, "f16", disk());
    let turn = [&prompt[..], &first, &question(&engine, " And then?")].concat();
    let events = run_together(&mut engine, &[request(turn.clone(), 24)]).remove(0);
    let report = events[0].prefix.as_ref().expect("the first event reports");
    assert!(report.loaded_tokens >= 512 && report.cached_tokens == report.loaded_tokens, "{report:?}");
    let got: Vec<u32> = events.iter().map(|event| event.sampled.token).collect();
    let alone = Request { prefix_use: PrefixUse::OFF, ..request(turn, 24) };
    assert_eq!(got, answers(&mut engine, &[alone]).remove(0));
}
