//! The memory in a file: all that must hold of any, and what is its own.

use crate::suite;
use std::cell::RefCell;
use std::fs;
use std::path::Path;

use crate::support::{another_program, entry, trace, turn, vector};
use ruvllm_memory::{
    Key, KeySource, Memory, MemoryError, MemoryOptions, Place, Trace, WitnessQuery, now_ms, restore_backup,
};
use tempfile::TempDir;

thread_local! {
    /// Folders of a test, removed when its thread ends.
    static FOLDERS: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

fn open(_: &str) -> Memory {
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    FOLDERS.with_borrow_mut(|folders| folders.push(folder));
    memory
}

suite!(open);

fn at(folder: &Path) -> Result<Memory, MemoryError> {
    Memory::open(MemoryOptions::in_folder(folder))
}

fn fill(memory: &Memory, count: usize) {
    let now = now_ms();
    let traces: Vec<Trace> =
        (0..count).map(|at| trace(entry(&format!("r{at}"), at as u64 % 10, now + at as i64))).collect();
    memory.record(&traces).unwrap();
}

#[test]
fn everything_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    fill(&memory, 300);
    let like = || WitnessQuery { like: Some(vector(3, 1)), count_max: 5, ..WitnessQuery::default() };
    let before = memory.witness().search(&like()).unwrap();
    drop(memory);
    let memory = at(folder.path()).unwrap();
    assert_eq!(memory.witness().search(&like()).unwrap(), before);
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
}

#[test]
fn nothing_can_be_read_without_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    let mut record = entry("a-secret-request", 1, now_ms());
    record.entry.session = Some("a-secret-session".into());
    memory.record(&[trace(record)]).unwrap();
    for name in ["memory.db", "memory.db-wal"] {
        let bytes = fs::read(folder.path().join(name)).unwrap();
        assert!(bytes.len() > 1000, "{name}");
        for secret in ["SQLite format 3", "a-secret", "CREATE TABLE", "smollm2"] {
            assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{name}: {secret}");
        }
    }
    drop(memory);

    let key = folder.path().join("memory.key");
    let right = fs::read_to_string(&key).unwrap();
    fs::write(&key, "00".repeat(32)).unwrap();
    assert!(matches!(at(folder.path()), Err(MemoryError::WrongKey { .. })));
    fs::remove_file(&key).unwrap();
    assert!(matches!(at(folder.path()), Err(MemoryError::KeyMissing { .. })));
    assert!(!key.exists(), "a new key would not fit");
    fs::write(&key, right).unwrap();
    assert_eq!(at(folder.path()).unwrap().status().unwrap().entries, 1);
}

#[cfg(unix)]
#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    fill(&memory, 1);
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", file.file_name());
    }
}

#[test]
fn a_flipped_byte_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    fill(&at(folder.path()).unwrap(), 200);
    let file = folder.path().join("memory.db");
    let sound = fs::read(&file).unwrap();
    let mut detected = 0;
    for at_byte in (0..sound.len()).step_by(sound.len() / 40) {
        let mut damaged = sound.clone();
        damaged[at_byte] ^= 0x10;
        fs::write(&file, damaged).unwrap();
        let read = at(folder.path()).and_then(|memory| {
            memory.witness().search(&WitnessQuery { like: Some(vector(1, 1)), ..WitnessQuery::default() })?;
            memory.sessions().list(&Default::default())?;
            let verified = memory.witness().verify(&mut |_| {})?;
            memory.check()?;
            Ok(verified.is_sound())
        });
        assert!(!matches!(read, Ok(true)), "byte {at_byte} of {}", sound.len());
        detected += 1;
    }
    assert!(detected >= 40);
    fs::write(&file, sound).unwrap();
    assert!(at(folder.path()).unwrap().witness().verify(&mut |_| {}).unwrap().is_sound());
}

#[test]
fn the_key_can_be_changed_and_a_change_that_was_cut_off_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    fill(&memory, 50);
    let key = folder.path().join("memory.key");
    let old = fs::read_to_string(&key).unwrap();
    memory.rekey(None).unwrap();
    fill(&memory, 5);
    assert_ne!(fs::read_to_string(&key).unwrap(), old);
    drop(memory);
    assert_eq!(at(folder.path()).unwrap().status().unwrap().entries, 55);

    // As if the process had ended before the new key was put in the place of the old.
    let new = fs::read_to_string(&key).unwrap();
    fs::rename(&key, folder.path().join("memory.next")).unwrap();
    fs::write(&key, &old).unwrap();
    assert_eq!(at(folder.path()).unwrap().status().unwrap().entries, 55);
    assert_eq!(fs::read_to_string(&key).unwrap(), new);
    // And before the memory was encrypted anew: the old one still holds.
    fs::write(folder.path().join("memory.next"), "11".repeat(32)).unwrap();
    assert_eq!(at(folder.path()).unwrap().status().unwrap().entries, 55);
}

#[test]
fn a_key_may_be_kept_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let with = |digits: &str| {
        let key = Some(KeySource::Command(format!("echo {digits}")));
        let place = Place::Folder { folder: folder.path().to_owned(), key };
        Memory::open(MemoryOptions { place, ..MemoryOptions::in_folder("") })
    };
    let (first, second) = ("ab".repeat(32), "cd".repeat(32));
    let memory = with(&first).unwrap();
    fill(&memory, 3);
    assert!(memory.rekey(None).unwrap_err().to_string().starts_with("key"));
    memory.rekey(Some(Key::from_hex(&second, "test").unwrap())).unwrap();
    drop(memory);
    assert!(matches!(with(&first), Err(MemoryError::WrongKey { .. })));
    assert_eq!(with(&second).unwrap().status().unwrap().entries, 3);
    assert!(!folder.path().join("memory.key").exists());
}

#[test]
fn a_backup_is_whole_and_takes_the_place_of_what_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    fill(&memory, 120);
    let copy = folder.path().join("copy.backup");
    let mut told = 0;
    memory.backup(&copy, &mut |done, all| told = done * 100 / all).unwrap();
    assert_eq!(told, 100);
    assert!(memory.backup(&copy, &mut |_, _| {}).is_err(), "nothing is overwritten");
    fill(&memory, 30);
    drop(memory);

    // A file that is no backup changes nothing.
    let broken = folder.path().join("broken");
    fs::write(&broken, vec![7; 8192]).unwrap();
    assert!(restore_backup(&broken, folder.path(), None).is_err());
    assert!(restore_backup(&folder.path().join("missing"), folder.path(), None).is_err());
    assert_eq!(at(folder.path()).unwrap().status().unwrap().entries, 150);
    restore_backup(&copy, folder.path(), None).unwrap();
    let memory = at(folder.path()).unwrap();
    assert_eq!(memory.status().unwrap().entries, 120);
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
    assert!(folder.path().join("memory.replaced").exists());
}

#[test]
fn two_programs_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (at(folder.path()).unwrap(), at(folder.path()).unwrap());
    let like = || WitnessQuery { like: Some(vector(3, 1)), count_max: 50, ..WitnessQuery::default() };
    let alike = |memory: &Memory| {
        let found = memory.witness().search(&like()).unwrap();
        found.iter().filter(|found| found.similarity.unwrap() > 0.8).count()
    };
    assert_eq!(alike(&other), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..10).for_each(|_| fill(&one, 20)));
        scope.spawn(|| (0..10).for_each(|_| fill(&other, 20)));
    });
    assert_eq!(one.status().unwrap().entries, 400);
    assert!(one.witness().verify(&mut |_| {}).unwrap().is_sound());
    other.maintain().unwrap();
    assert_eq!(alike(&other), 40, "what the other stored is caught up with");
}

#[test]
fn old_entries_make_room_when_the_memory_is_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = MemoryOptions::in_folder(folder.path());
    options.retention.bytes_max = 2_000_000;
    let memory = Memory::open(options).unwrap();
    for _ in 0..30 {
        fill(&memory, 50);
    }
    let before = memory.status().unwrap();
    assert!(before.bytes > 2_000_000);
    for _ in 0..5 {
        memory.maintain().unwrap();
    }
    let after = memory.status().unwrap();
    assert!(after.entries >= 100 && after.entries < before.entries && after.bytes < 2_500_000, "{after:?}");
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
}

fn limited(limit: impl FnOnce(&mut ruvllm_memory::Retention)) -> Memory {
    let folder = tempfile::tempdir().unwrap();
    let mut options = MemoryOptions::in_folder(folder.path());
    limit(&mut options.retention);
    let memory = Memory::open(options).unwrap();
    FOLDERS.with_borrow_mut(|folders| folders.push(folder));
    memory
}

#[test]
fn the_sessions_of_a_tenant_stay_within_their_quota() {
    suite::the_sessions_of_a_tenant_stay_within_their_quota(&limited(|limits| limits.session_bytes_max = 100_000));
}

#[test]
fn sessions_make_room_as_entries_do() {
    suite::sessions_make_room_as_entries_do(&limited(|limits| limits.bytes_max = 1_000_000));
}

/// Somebody writes between any two steps of it.
#[test]
fn a_backup_ends_however_much_is_written_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    for at in 0..20 {
        let mut large = entry(&format!("large-{at}"), 1, now_ms());
        large.entry.documents = vec!["x".repeat(1 << 20)];
        memory.record(&[trace(large)]).unwrap();
    }
    let copy = folder.path().join("copy");
    let mut steps = 0;
    memory
        .backup(&copy, &mut |_, _| {
            steps += 1;
            assert!(steps < 50, "it begins anew each time");
            fill(&memory, 1);
        })
        .unwrap();
    assert!(steps >= 3, "{steps}");
    let elsewhere = tempfile::tempdir().unwrap();
    fs::copy(folder.path().join("memory.key"), elsewhere.path().join("memory.key")).unwrap();
    restore_backup(&copy, elsewhere.path(), None).unwrap();
    let restored = at(elsewhere.path()).unwrap();
    assert_eq!(restored.status().unwrap().entries, 20, "as it was when the backup began");
    assert!(restored.witness().verify(&mut |_| {}).unwrap().is_sound());
}

#[test]
fn restoring_keeps_what_a_killed_program_had_written_and_refuses_while_somebody_uses_it() {
    let running = tempfile::tempdir().unwrap();
    let memory = at(running.path()).unwrap();
    fill(&memory, 10);
    let copy = running.path().join("copy");
    memory.backup(&copy, &mut |_, _| {}).unwrap();
    fill(&memory, 5);
    let error = restore_backup(&copy, running.path(), None).unwrap_err();
    assert!(matches!(error, MemoryError::InUse { .. }), "{error}");
    assert_eq!(memory.status().unwrap().entries, 15, "nothing has changed");

    // As a program leaves it that is killed: the newest entries are in the journal.
    let folder = tempfile::tempdir().unwrap();
    for name in ["memory.db", "memory.db-wal", "memory.key"] {
        fs::copy(running.path().join(name), folder.path().join(name)).unwrap();
    }
    let replaced = |name: &str| {
        let place = tempfile::tempdir().unwrap();
        fs::copy(folder.path().join("memory.key"), place.path().join("memory.key")).unwrap();
        fs::copy(folder.path().join(name), place.path().join("memory.db")).unwrap();
        let journal = folder.path().join(format!("{name}-wal"));
        if journal.exists() {
            fs::copy(journal, place.path().join("memory.db-wal")).unwrap();
        }
        at(place.path()).unwrap().status().unwrap().entries
    };
    restore_backup(&copy, folder.path(), None).unwrap();
    assert_eq!(at(folder.path()).unwrap().status().unwrap().entries, 10);
    assert_eq!(replaced("memory.replaced"), 15, "with what was in the journal");
    restore_backup(&copy, folder.path(), None).unwrap();
    assert_eq!((replaced("memory.replaced"), replaced("memory.replaced-2")), (15, 10), "each is kept");
}

#[test]
fn a_key_is_not_changed_while_somebody_else_uses_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (at(folder.path()).unwrap(), at(folder.path()).unwrap());
    fill(&other, 3);
    assert!(matches!(one.rekey(None), Err(MemoryError::InUse { .. })));
    fill(&other, 3);
    drop(other);
    one.rekey(None).unwrap();
    assert_eq!(at(folder.path()).unwrap().status().unwrap().entries, 6, "others may use it again");
}

#[test]
fn verification_compares_every_column_with_what_the_entry_says() {
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    for name in ["one", "two"] {
        let mut trace = Trace { turn: Some(turn("", name, "hello", now_ms())), ..trace(entry(name, 1, now_ms())) };
        trace.witness.entry.session = Some(name.into());
        memory.record(&[trace]).unwrap();
    }
    fill(&memory, 1);
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
    let other = another_program(folder.path());
    for change in [
        "witness SET prompt_tokens = 0",
        "witness SET cached_tokens = 7",
        "witness SET answer_tokens = 0",
        "witness SET session = NULL",
        "witness SET session = (SELECT max(session) FROM witness)",
        "witness SET total_ms = 1",
        "witness SET quality = NULL",
        "witness SET error = 'timeout'",
        "witness SET request = 'another'",
        "witness SET tenant = 1",
        "witness SET kind = 'feedback'",
        "witness SET about = 'another'",
        "witness SET response = 'another'",
        "witness SET end_user = 'another'",
        "witness SET choice = 1",
        "batches SET bytes = 1",
        "batches SET rule = NULL",
    ] {
        let saved = "CREATE TEMP TABLE w AS SELECT * FROM witness; CREATE TEMP TABLE b AS SELECT * FROM batches;";
        other.execute_batch(&format!("{saved} UPDATE {change};")).unwrap();
        assert!(!memory.witness().verify(&mut |_| {}).unwrap().is_sound(), "{change}");
        let put_back = "DELETE FROM witness; INSERT INTO witness SELECT * FROM w; DROP TABLE w; \
                        DELETE FROM batches; INSERT INTO batches SELECT * FROM b; DROP TABLE b;";
        other.execute_batch(put_back).unwrap();
        assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound(), "{change} was put back");
    }
    // A session that is forgotten leaves its entries as they are.
    assert!(memory.sessions().remove("", "one").unwrap());
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
}

#[test]
fn a_list_of_sessions_reads_no_conversations_and_older_memories_get_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let memory = at(folder.path()).unwrap();
    for name in ["one", "two"] {
        let trace = Trace { turn: Some(turn("", name, "hello", now_ms())), ..trace(entry(name, 1, now_ms())) };
        memory.record(&[trace]).unwrap();
    }
    let before = memory.sessions().list(&Default::default()).unwrap();
    assert_eq!(before.len(), 2);
    drop(memory);
    // As the first version left it.
    let older = "DROP TABLE session_heads; DROP TABLE trajectories; DROP TABLE learned_versions; \
                 DROP TABLE learned_scopes; DROP TABLE workers; \
                 DELETE FROM counters WHERE name IN ('policies', 'learned', 'workers'); \
                 DROP INDEX witness_by_about; DROP INDEX witness_by_response; DROP INDEX witness_by_user; \
                 DROP INDEX witness_by_kind; ALTER TABLE witness DROP COLUMN kind; \
                 ALTER TABLE witness DROP COLUMN about; ALTER TABLE witness DROP COLUMN response; \
                 ALTER TABLE witness DROP COLUMN end_user; DROP INDEX witness_by_choice; \
                 ALTER TABLE witness DROP COLUMN choice; ALTER TABLE batches DROP COLUMN rule; \
                 UPDATE meta SET value = '1' WHERE name = 'schema';";
    another_program(folder.path()).execute_batch(older).unwrap();
    let memory = at(folder.path()).unwrap();
    assert_eq!(memory.sessions().list(&Default::default()).unwrap(), before);
    another_program(folder.path()).execute_batch("UPDATE sessions SET body = 'no conversation'").unwrap();
    assert_eq!(memory.sessions().list(&Default::default()).unwrap(), before);
    assert!(memory.sessions().get("", "one").is_err());
}

#[test]
fn it_says_what_is_encrypted() {
    let told = open("encrypted").status().unwrap().encryption;
    assert!(told.contains("SQLCipher") && !told.contains("not by RuvLLM"), "{told}");
}
