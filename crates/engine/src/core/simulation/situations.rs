//! Single situations that random requests meet too rarely, or that need a look in between.

use ruvllm_kv::{DiskStore, KvOptions, PageKey, Quota, Tiers};
use ruvllm_runner::{FakeRunner, Fault, KvShape};

use super::super::{Core, CoreOptions};
use super::run::{Alone, held};
use super::setting::{CONTEXT, Device, FAKE, Setting, TINY, VOCABULARY};
use crate::{Request, Sampling, StepError, SubmitError, Tenant};

/// Runs one request and returns its tokens, and how many of the prompt's were cached.
fn turn(core: &mut Core, prompt: &[u32], max_tokens: usize) -> (Vec<u32>, usize) {
    core.submit(Request { max_tokens: Some(max_tokens), ..Request::new(prompt.to_vec()) }).expect("it fits");
    let (mut tokens, mut cached) = (Vec::new(), 0);
    while !core.is_idle() {
        for event in core.step() {
            let event = event.expect("no fault");
            cached += event.prefix.map_or(0, |prefix| prefix.cached_tokens);
            tokens.push(event.sampled.token);
        }
    }
    (tokens, cached)
}

#[test]
fn the_next_turn_of_a_chat_goes_on_where_the_last_one_ended() {
    for device in [Device::FakeRecurrent, Device::Recurrent("lfm2"), Device::Recurrent("qwen35")] {
        let folder = tempfile::tempdir().expect("a folder");
        let core = || {
            let disk = Some(DiskStore::open(folder.path(), 64 << 20, PageKey::new(&[1; 32])).expect("a sound folder"));
            let kv = KvOptions { budget_bytes: 8 << 20, disk, ..KvOptions::new(TINY.tiers()) };
            Setting { device, ..TINY }.core(CoreOptions { kv, ..CoreOptions::new(0) })
        };
        let mut first = core();
        let prompt: Vec<u32> = (0..150).map(|i| (i * i + 3 * i) % VOCABULARY).collect();
        let (answer, cached) = turn(&mut first, &prompt, 40);
        assert_eq!((answer.len(), cached), (40, 0));
        // All of it but the last token has been computed; the page that it ended in has no state at its end.
        let whole = [&prompt[..], &answer, &[1, 2, 3, 4, 5]].concat();
        let (_, cached) = turn(&mut first, &whole, 1);
        assert_eq!(cached, 189 / 16 * 16, "what was generated is found");
        // The next prompt leaves out the answer's reasoning, and what began it.
        let without = [&prompt[..prompt.len() - 10], &[9; 30]].concat();
        let (_, cached) = turn(&mut first, &without, 1);
        assert_eq!(cached, 128, "the prompt is found");
        // Others that begin with the same instructions: the second computes them, and leaves a snapshot for the third.
        let other = |own: u32| [&prompt[..90], &[own; 30]].concat();
        assert_eq!(turn(&mut first, &other(20), 1).1, 0);
        assert_eq!(turn(&mut first, &other(21), 1).1, 80);
        drop(first);
        let mut second = core();
        assert_eq!(turn(&mut second, &whole, 1).1, 189 / 16 * 16, "it is found after a restart");
        assert_eq!(turn(&mut second, &other(22), 1).1, 80);
        second.audit().expect("all accounts balance");
    }
}

/// Whatever needs logits is refused by its name; the rest of sampling is the runner's.
#[test]
fn a_runner_that_chooses_tokens_refuses_what_needs_logits() {
    let mut core = Setting { device: Device::FakeChoosing, with_disk: false, ..FAKE }.core(CoreOptions::new(8 << 20));
    let mut refused = |sampling: Sampling| match core.submit(Request { sampling, ..Request::new(vec![1, 2, 3]) }) {
        Err(SubmitError::ChoosesTokens { field }) => Some(field),
        outcome => outcome.map(|_| None).expect("it is refused for nothing else"),
    };
    assert_eq!(refused(Sampling { top_logprobs: Some(1), ..Sampling::greedy() }), Some("logprobs"));
    assert_eq!(refused(Sampling { logit_bias: [(5, 1.0)].into(), ..Sampling::greedy() }), Some("logit_bias"));
    assert_eq!(refused(Sampling { typical_p: 0.5, ..Sampling::greedy() }), Some("typical_p"));
    assert_eq!(refused(Sampling { temperature: 0.7, top_k: 3, presence_penalty: 0.5, ..Sampling::default() }), None);
    let outcome = core.evaluate(&[1, 2, 3], 0..2, |_, _| {});
    assert_eq!(outcome, Err(SubmitError::NoLogits.into()));
}

#[test]
fn a_budget_below_one_recurrent_state_refuses_requests() {
    let mut core = Setting { device: Device::Recurrent("qwen35"), ..TINY }.core(CoreOptions::new(1024));
    let refused = core.submit(Request::new(vec![1, 2, 3]));
    assert!(matches!(refused, Err(SubmitError::TooLargeForCache { pages: 0, .. })), "{refused:?}");
}

#[test]
fn one_tenant_cannot_fill_the_queue_for_others() {
    let options = CoreOptions { queue_max: 64, sequences_max: 1, ..CoreOptions::new(TINY.budget_bytes) };
    let mut core = Setting { with_disk: false, ..TINY }.core(options);
    let request = |tenant: &str| Request { tenant: Tenant::new(tenant), ..Request::new(vec![1, 2, 3]) };
    let accepted =
        |core: &mut Core, tenant: &str| (0..100).take_while(|_| core.submit(request(tenant)).is_ok()).count();
    assert_eq!(accepted(&mut core, "greedy"), 32);
    assert_eq!(accepted(&mut core, "as greedy"), 16);
    assert_eq!(accepted(&mut core, "modest"), 8);
    assert!(core.submit(request("late")).is_ok());
    assert!(matches!(core.submit(request("greedy")), Err(SubmitError::TenantQueueFull { waiting: 32 })));
}

#[test]
fn prompts_that_wait_are_bounded_by_their_tokens_too() {
    let options = CoreOptions { queue_tokens_max: 1000, ..CoreOptions::new(TINY.budget_bytes) };
    let mut core = Setting { with_disk: false, ..TINY }.core(options);
    let request = |tenant: &str| Request { tenant: Tenant::new(tenant), ..Request::new(vec![1; 100]) };
    assert_eq!((0..100).take_while(|_| core.submit(request("greedy")).is_ok()).count(), 5);
    assert!(core.submit(request("modest")).is_ok());
}

#[test]
fn the_quota_of_a_tenant_holds_for_all_of_its_adapters_together() {
    let page = KvShape::new(2, 1, 16).page_bytes("f16".parse::<Tiers>().unwrap().hot);
    let quota = Quota { guaranteed_bytes: 0, limit_bytes: Some(4 * page) };
    let options = CoreOptions { quotas: vec![(Tenant::new("a"), quota)], ..CoreOptions::new(40 * page) };
    let mut core = FAKE.core(options);
    for digest in 0..4 {
        let adapter = (digest > 0).then(|| held([digest; 32], None));
        let prompt = (0..60).collect::<Vec<u32>>().iter().map(|token| token % VOCABULARY).collect();
        let request = Request { tenant: Tenant::new("a"), adapter, max_tokens: Some(1), ..Request::new(prompt) };
        core.submit(request).expect("it fits");
        while !core.is_idle() {
            core.step().into_iter().for_each(|result| drop(result.expect("no fault")));
        }
        assert!(core.cache_stats().used_bytes <= 4 * page, "{} adapters", digest);
    }
    let lookups: Vec<_> = core.tenants().collect();
    assert_eq!((lookups.len(), lookups[0].1.lookups), (1, 4), "all of them are one tenant's");
}

#[test]
fn a_lost_device_ends_all_sequences_and_refuses_new_ones() {
    let (mut core, faults) =
        FAKE.core_with_faults(CoreOptions { sequences_max: 2, ..CoreOptions::new(FAKE.budget_bytes) });
    let submit = |core: &mut Core| core.submit(Request::new(vec![1, 2, 3]));
    assert!((0..3).all(|_| submit(&mut core).is_ok()));
    assert_eq!(core.step().len(), 2, "the third waits");
    faults.inject(Fault::DeviceLost);
    let results = core.step();
    assert!(results.iter().all(|result| matches!(result, Err(StepError::Runner { .. }))) && results.len() == 3);
    assert!(core.is_idle() && matches!(submit(&mut core), Err(SubmitError::DeviceLost(_))));
    core.audit().expect("nothing is left behind");
}

#[test]
fn nothing_of_a_lost_device_is_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let core = || {
        let disk = Some(DiskStore::open(folder.path(), 1 << 20, PageKey::new(&[1; 32])).expect("a sound folder"));
        let kv = KvOptions { budget_bytes: FAKE.budget_bytes, disk, ..KvOptions::new(FAKE.tiers()) };
        // One step computes more pages than are queued for the disk after it.
        let shape = KvShape::new(2, 1, 16);
        let runner = FakeRunner::new(shape, VOCABULARY as usize, CONTEXT, CONTEXT);
        let faults = runner.faults();
        (Core::new(Box::new(runner), CoreOptions { kv, ..CoreOptions::new(0) }), faults)
    };
    let prompt: Vec<u32> = (0..300).map(|i| i * i % VOCABULARY).collect();
    let request = Request { max_tokens: Some(10), ..Request::new(prompt) };
    let (mut lost, faults) = core();
    lost.submit(request.clone()).expect("it fits");
    assert!(lost.step().iter().all(Result::is_ok));
    faults.inject(Fault::DeviceLost);
    assert!(lost.step().iter().all(Result::is_err));
    drop(lost);
    let (mut again, _) = core();
    again.submit(request.clone()).expect("it fits");
    let mut answer = Vec::new();
    while !again.is_idle() {
        let events = again.step().into_iter().map(|event| event.expect("no fault"));
        answer.extend(events.map(|event| (event.sampled.token, event.states)));
    }
    assert!(answer == Alone::new(FAKE).answer(&request));
}

/// Pages of 256 KiB in three slabs: as many as the context has, if none is in a colder format.
const TIGHT: Setting =
    Setting { heads: 32, head_dim: 64, tiers: "f16:32,q8/q4", budget_bytes: 5 << 20, with_disk: false, ..TINY };

/// The tokens of an answer, if it comes to an end.
fn answer(core: &mut Core, prompt: Vec<u32>, max_tokens: usize) -> Option<usize> {
    core.submit(Request { max_tokens: Some(max_tokens), ..Request::new(prompt) }).expect("it fits");
    let mut tokens = 0;
    for _ in 0..1000 {
        let results: Vec<_> = core.step().into_iter().collect::<Result<_, _>>().expect("it does not fail");
        tokens += results.len();
        if core.is_idle() {
            return Some(tokens);
        }
    }
    None
}

/// What is cached of it in a colder format takes a slab of its own, and with that more room than it saves.
#[test]
fn what_fits_alone_is_not_kept_from_starting_by_its_own_cached_prefix() {
    let kv = KvOptions { budget_bytes: TIGHT.budget_bytes, ..KvOptions::new(TIGHT.tiers()) };
    let mut core = TIGHT.core(CoreOptions { kv, ..CoreOptions::new(0) });
    let prompt: Vec<u32> = (0..300).map(|i| i * i % VOCABULARY).collect();
    assert_eq!(answer(&mut core, prompt[..120].to_vec(), 4), Some(4));
    assert!(core.cache_stats().cooled_pages > 0);
    assert_eq!(answer(&mut core, prompt, 10), Some(10));
}

#[test]
fn a_prompt_that_takes_the_last_page_is_answered() {
    let mut core = TIGHT.core(CoreOptions::new(TIGHT.budget_bytes));
    assert_eq!(answer(&mut core, vec![1; CONTEXT - 1], 1), Some(1));
}
