//! A store that an earlier build wrote, with SQLCipher and OpenSSL: it opens, complete, and what is written now has its format.
//!
//! `tests/data/older_store` was copied while that build had it open: the requests of the tenant `acme` are in its journal only.

use std::fs;
use std::path::Path;

use crate::support::{another_program, entry, trace, vector};
use ruvllm_memory::{
    ChainError, Forget, Item, Key, Kind, Memory, MemoryError, MemoryOptions, PolicyQuery, PolicySource, WitnessQuery,
};
use tempfile::TempDir;

/// When its first entry was written; one second later the next.
const AT_MS: i64 = 1_790_000_000_000;
const CHAIN: &str = "0a64d8611c82e6b8f4215d64d7293c60803302d2f98a1b0c8ffd3aa4b7c247e2";

/// SQLCipher 4: pages of 4096 bytes, of which the first begins with the salt. Each ends with 16 bytes of nonce and 64 of HMAC.
const PAGE_BYTES: usize = 4096;
const SALT_BYTES: usize = 16;
const HMAC_BYTES: usize = 64;

fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/older_store")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

fn open(folder: &TempDir) -> Memory {
    Memory::open(MemoryOptions::in_folder(folder.path())).unwrap()
}

/// Compares everything in it with what was written.
fn check_contents(memory: &Memory) {
    memory.check().unwrap();
    let verified = memory.witness().verify(&mut |_| {}).unwrap();
    assert!(verified.is_sound(), "{:?}", verified.problems);
    assert_eq!((verified.batches, verified.entries, verified.vectors), (2, 7, 14));
    assert_eq!(verified.hash, CHAIN);
    let status = memory.status().unwrap();
    assert_eq!((status.sessions, status.policies, status.vectors, status.edges), (2, 2, 17, 6));
    let embeddings = memory.embeddings();
    assert_eq!(embeddings.name().unwrap().as_deref(), Some("minilm"));
    let stats = embeddings.dimension_stats().unwrap().unwrap();
    assert_eq!((stats.centre, stats.spread), (vec![0.125, -0.5], vec![1.5, 0.75]));
    check_policies(memory);
    check_sessions(memory);
    check_entries(memory);
}

fn check_policies(memory: &Memory) {
    let policies = memory.policies().list(&PolicyQuery::default()).unwrap();
    let router = policies.iter().find(|policy| policy.kind == "router").unwrap();
    assert_eq!((router.confidence, router.source), (0.9, PolicySource::Deep));
    assert_eq!(router.parameters["temperature"], 0.2);
    let pattern = policies.iter().find(|policy| policy.kind == "pattern").unwrap();
    assert_eq!((pattern.tenant.as_str(), pattern.name.as_str()), ("acme", "contracts"));
    assert_eq!(pattern.parameters["hint"], "be brief");
}

fn check_sessions(memory: &Memory) {
    let trip = memory.sessions().get("", "trip to Oslo").unwrap().unwrap();
    assert_eq!((trip.turns, trip.messages.len(), trip.active_ms), (6, 12, AT_MS + 5_000));
    assert_eq!(trip.messages[11]["content"], "You said turn 5.");
    let contract = memory.sessions().get("acme", "contract").unwrap().unwrap();
    assert_eq!((contract.turns, contract.messages.len()), (1, 2));
}

fn check_entries(memory: &Memory) {
    for at in 0..6 {
        let found = memory.witness().by_request(&format!("r{at}")).unwrap();
        let expected = entry(&format!("r{at}"), at % 3, AT_MS + at as i64 * 1000).entry;
        let stored = &found[0].1;
        assert_eq!((stored.at_ms, stored.latency, stored.tokens), (expected.at_ms, expected.latency, expected.tokens));
        assert_eq!(stored.session.as_deref(), Some("trip to Oslo"));
        assert_eq!(stored.error.as_ref().map(|error| error.kind.as_str()), (at == 4).then_some("timeout"));
        assert_eq!(stored.routing, expected.routing);
    }
    let query = WitnessQuery { tenant: Some("acme".into()), like: Some(vector(1, 0)), ..WitnessQuery::default() };
    let found = memory.witness().search(&query).unwrap();
    assert_eq!((found.len(), found[0].entry.request.as_str()), (1, "of-acme"));
    let near = memory.recall(&vector(1, 0), &[Kind::Policy], None, 1).unwrap();
    assert!(near[0].similarity > 0.99);
    assert!(matches!(&near[0].item, Item::Policy(policy) if policy.kind == "router"));
}

#[test]
fn it_opens_complete_and_again_with_another_key() {
    let folder = copy();
    let old = fs::read_to_string(folder.path().join("memory.key")).unwrap();
    check_contents(&open(&folder));
    let memory = open(&folder);
    memory.rekey(None).unwrap();
    check_contents(&memory);
    drop(memory);
    check_contents(&open(&folder));
    let new = fs::read_to_string(folder.path().join("memory.key")).unwrap();
    assert_ne!(old, new);

    fs::write(folder.path().join("memory.key"), &old).unwrap();
    let refused = Memory::open(MemoryOptions::in_folder(folder.path()));
    assert!(matches!(refused, Err(MemoryError::WrongKey { .. })), "the old key no longer opens it");
}

#[test]
fn it_is_backed_up_restored_and_written_on() {
    let folder = copy();
    let memory = open(&folder);
    let backup = folder.path().join("copy.backup");
    memory.backup(&backup, &mut |_, _| {}).unwrap();
    memory.record(&[trace(entry("later", 1, AT_MS + 20_000))]).unwrap();
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
    drop(memory);
    assert_eq!(open(&folder).status().unwrap().entries, 8);
    ruvllm_memory::restore_backup(&backup, folder.path(), None).unwrap();
    check_contents(&open(&folder));
}

/// Its batches cover whole bodies: one that has lost an entry is linked to the others, and no more.
#[test]
fn what_it_holds_can_be_forgotten_and_the_chain_goes_on() {
    let folder = copy();
    let memory = open(&folder);
    let forgotten = memory.learning().forget(&Forget::Tenant("acme".into()), "req-x").unwrap();
    assert_eq!((forgotten.requests, forgotten.sessions, forgotten.embeddings), (1, 1, 3));
    memory.record(&[trace(entry("later", 1, AT_MS + 20_000))]).unwrap();
    drop(memory);
    let memory = open(&folder);
    let verified = memory.witness().verify(&mut |_| {}).unwrap();
    assert!(verified.is_sound(), "{:?}", verified.problems);
    assert_eq!((verified.batches, verified.forgotten, verified.batches_not_recomputed), (4, 1, 1));
    assert!(memory.witness().by_request("of-acme").unwrap().is_empty());
    let blank = format!(
        "UPDATE witness_bodies SET body = '{{\"kind\": \"forgotten\", \"request\": \"r1\", \"at_ms\": {}, \
         \"model\": \"smollm2\", \"digest\": \"{}\", \"bytes\": ' || octet_length(body) || '}}' \
         WHERE id = (SELECT id FROM witness WHERE request = 'r1'); \
         UPDATE witness SET kind = 'forgotten' WHERE request = 'r1'",
        AT_MS + 1000,
        "00".repeat(32)
    );
    another_program(folder.path()).execute_batch(&blank).unwrap();
    let problems = memory.witness().verify(&mut |_| {}).unwrap().problems;
    assert!(matches!(problems[..], [ChainError::Blank { .. }]), "nobody said that it was forgotten: {problems:?}");
}

#[test]
fn a_new_store_has_the_format_of_sqlcipher_4() {
    let folder = tempfile::tempdir().unwrap();
    let memory = open(&folder);
    memory.record(&[trace(entry("r", 1, AT_MS))]).unwrap();
    memory.rekey(Some(Key::from_hex(&"5a".repeat(32), "test").unwrap())).unwrap();
    drop(memory);
    let bytes = fs::read(folder.path().join("memory.db")).unwrap();
    assert_eq!(bytes.len() % PAGE_BYTES, 0);

    let connection = another_program(folder.path());
    let salt: String = connection.query_row("PRAGMA cipher_salt", [], |row| row.get(0)).unwrap();
    let first: String = bytes[..SALT_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(salt.to_lowercase(), first, "the salt stands first, in the place of SQLite's own header");
    let page_bytes: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    assert_eq!(page_bytes, PAGE_BYTES as i64);
    let version: String = connection.query_row("PRAGMA legacy", [], |row| row.get(0)).unwrap();
    assert_eq!(version, "4");
    let header = [0x10, 0, 2, 2, (SALT_BYTES + HMAC_BYTES) as u8, 64, 32, 32];
    assert_ne!(bytes[SALT_BYTES..][..8], header, "nothing else of SQLite's header is readable");

    for wrong in ["5b".repeat(32), "00".repeat(32)] {
        fs::write(folder.path().join("memory.key"), wrong).unwrap();
        let refused = Memory::open(MemoryOptions::in_folder(folder.path()));
        assert!(matches!(refused, Err(MemoryError::WrongKey { .. })));
    }
}
