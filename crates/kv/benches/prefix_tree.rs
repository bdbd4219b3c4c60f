//! How long it takes to find a prompt among very many cached ones, and what the tree itself takes:
//! `cargo bench -p ruvllm-kv`.

use std::time::Instant;

use ruvllm_kv::{Namespace, PrefixTree};
use ruvllm_runner::{PAGE_TOKENS, PageId};

const NODES: usize = 100_000;
const PROMPT_TOKENS: usize = 4096;
const LOOKUPS: usize = 20_000;
/// The bytes of a page of the default model in its smallest format, to compare the tree's own with.
const PAGE_BYTES: usize = 150_000;

fn main() {
    let namespace = Namespace::of(&[b"bench"]);
    let mut tree = PrefixTree::new();
    let mut pages = 0;
    let mut insert = |tree: &mut PrefixTree, tokens: &[u32]| {
        let count = tokens.len().div_ceil(PAGE_TOKENS) as u32;
        tree.insert(namespace, tokens, &(pages..pages + count).map(PageId).collect::<Vec<_>>());
        pages += count;
    };
    // Conversations: one of 50 system prompts, then turns that part from each other at every page.
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as u32
    };
    let long: Vec<Vec<u32>> = (0..50).map(|_| (0..PROMPT_TOKENS).map(|_| next()).collect()).collect();
    let started = Instant::now();
    while tree.nodes() < NODES {
        let text = &long[next() as usize % long.len()];
        let shared = next() as usize % PROMPT_TOKENS;
        let own = 20 + next() as usize % 60;
        let tokens: Vec<u32> = text[..shared].iter().copied().chain((0..own).map(|_| next())).collect();
        insert(&mut tree, &tokens);
    }
    let per_insert = started.elapsed().as_secs_f64() * 1e6 / (tree.nodes() as f64 / 2.0);
    let mut micros: Vec<f64> = (0..LOOKUPS)
        .map(|i| {
            let mut prompt = long[next() as usize % long.len()].clone();
            if i % 2 == 0 {
                prompt[next() as usize % PROMPT_TOKENS] = 7;
            }
            let started = Instant::now();
            let found = tree.find(namespace, &prompt);
            let took = started.elapsed().as_secs_f64() * 1e6;
            assert!(found.tokens() > 0 || i % 2 == 0);
            took
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    let share = tree.bookkeeping_bytes() as f64 / (tree.pages() * PAGE_BYTES) as f64;
    println!("{} nodes, {} pages; inserting a text takes about {per_insert:.1} µs", tree.nodes(), tree.pages());
    println!(
        "look-up of {PROMPT_TOKENS} tokens: median {:.1} µs, 99 % {:.1} µs, worst {:.1} µs",
        micros[LOOKUPS / 2],
        micros[LOOKUPS * 99 / 100],
        micros[LOOKUPS - 1]
    );
    println!("the tree takes {:.3} % of the bytes that it caches", share * 100.0);
}
