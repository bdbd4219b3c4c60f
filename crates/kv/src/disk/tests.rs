use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_runner::PageFormat;

use super::page_file::SavedPage;
use super::*;
use crate::prefix::{Namespace, PageHash};

fn hash(number: u32) -> PageHash {
    Namespace::of(&[b"test"]).root().next(&[number])
}

fn page(number: u32) -> Vec<u8> {
    (0..1000).map(|i| (i * 7 + number as usize) as u8).collect()
}

fn key() -> PageKey {
    PageKey::new(&[1; 32])
}

fn store(folder: &Path, budget_bytes: u64) -> DiskStore {
    DiskStore::open(folder, budget_bytes, key()).unwrap()
}

fn open(folder: &Path, budget_bytes: u64) -> DiskTier {
    DiskTier::new(store(folder, budget_bytes))
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let shelves = fs::read_dir(folder).unwrap().flatten();
    shelves.flat_map(|shelf| fs::read_dir(shelf.path()).unwrap().flatten().map(|file| file.path())).collect()
}

/// What is in the folder once all is written.
fn files(tier: &DiskTier) -> Vec<PathBuf> {
    tier.flush();
    files_in(tier.folder())
}

fn bytes(tier: &DiskTier) -> u64 {
    files(tier).iter().map(|file| file.metadata().unwrap().len()).sum()
}

#[test]
fn pages_are_found_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    for number in 0..5 {
        tier.write(hash(number), PageFormat::Q8, page(number));
    }
    drop(tier);
    let mut tier = open(folder.path(), 1 << 20);
    assert_eq!(tier.stats().pages, 5);
    assert_eq!(tier.read(hash(3)), Some(SavedPage { format: Some(PageFormat::Q8), bytes: page(3) }));
    assert_eq!(tier.read(hash(9)), None);
}

#[test]
fn the_budget_holds_and_what_is_used_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 5500);
    for number in 0..5 {
        tier.write(hash(number), PageFormat::F16, page(number));
    }
    tier.read(hash(0)).unwrap();
    tier.write(hash(5), PageFormat::F16, page(5));
    assert!(tier.contains(hash(0)) && !tier.contains(hash(1)));
    assert_eq!(bytes(&tier), tier.stats().bytes);
    assert!(bytes(&tier) <= 5500);
    // A smaller budget at the next start holds as well, and so does the order of use.
    drop(tier);
    let tier = open(folder.path(), 2200);
    assert_eq!(tier.stats().pages, 2);
    assert!(tier.contains(hash(5)));
}

#[cfg(unix)]
#[test]
fn other_users_cannot_read_pages() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    tier.write(hash(0), PageFormat::Q8, page(0));
    let shelf = files(&tier)[0].parent().unwrap().metadata().unwrap();
    assert_eq!(shelf.permissions().mode() & 0o777, 0o700);
}

#[test]
fn damage_is_noticed_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    tier.write(hash(0), PageFormat::Q8, page(0));
    let path = files(&tier).remove(0);
    let sound = fs::read(&path).unwrap();
    let mut damages = 0;
    for at in (0..sound.len()).step_by(37) {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        let mut tier = open(folder.path(), 1 << 20);
        assert_eq!(tier.read(hash(0)), None, "byte {at}");
        tier.flush();
        assert!(!path.exists() && !tier.contains(hash(0)));
        damages += tier.stats().damaged;
    }
    assert_eq!(damages, sound.len().div_ceil(37) as u64);
    for len in [0, 10, 43, 44, sound.len() - 1] {
        fs::write(&path, &sound[..len]).unwrap();
        assert_eq!(open(folder.path(), 1 << 20).read(hash(0)), None, "{len} bytes");
    }
}

#[test]
fn a_page_under_another_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    tier.write(hash(0), PageFormat::Q8, page(0));
    let path = files(&tier).remove(0);
    let bytes = fs::read(&path).unwrap();
    tier.write(hash(1), PageFormat::Q8, page(1));
    let other = files(&tier).into_iter().find(|file| *file != path).unwrap();
    fs::write(&other, bytes).unwrap();
    assert_eq!(tier.read(hash(1)), None);
    assert_eq!(tier.stats().damaged, 1);
}

#[test]
fn what_others_remove_or_leave_behind_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    tier.write(hash(0), PageFormat::Q8, page(0));
    let path = files(&tier).remove(0);
    fs::write(path.with_extension("77.part"), b"half a page").unwrap();
    fs::write(path.with_extension("txt"), b"a note").unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    assert_eq!((tier.stats().pages, files(&tier).len()), (1, 2));
    fs::remove_file(&path).unwrap();
    assert_eq!(tier.read(hash(0)), None);
    assert_eq!((tier.stats().pages, tier.stats().bytes, tier.stats().damaged), (0, 0, 0));
}

#[test]
fn a_page_is_there_before_it_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = DiskTier::new(DiskStore::stopped(folder.path(), 1 << 20, 2500, key()).unwrap());
    for number in 0..2 {
        assert!(tier.has_room(1000));
        tier.write(hash(number), PageFormat::Q8, page(number));
    }
    assert!(!tier.has_room(1000), "the queue is bounded");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(tier.contains(hash(1)));
    assert_eq!(tier.read(hash(1)), Some(SavedPage { format: Some(PageFormat::Q8), bytes: page(1) }));
}

#[test]
fn a_page_that_was_removed_does_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    // Room for two pages, whose files take 1,044 bytes each: most are removed before they are written.
    let mut tier = open(folder.path(), 2200);
    for number in 0..200 {
        tier.write(hash(number % 7), PageFormat::Q8, page(number % 7));
        let stats = tier.stats();
        assert!(stats.pages <= 2 && stats.bytes <= 2200);
    }
    assert_eq!((files(&tier).len(), bytes(&tier)), (2, tier.stats().bytes));
    assert_eq!(tier.read(hash(199 % 7)), Some(SavedPage { format: Some(PageFormat::Q8), bytes: page(199 % 7) }));
    assert_eq!(tier.read(hash(197 % 7)), None);
}

#[test]
fn a_full_queue_waits_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // Less than one page: each waits for the one before.
    let mut tier = DiskTier::new(DiskStore::stopped(folder.path(), 1 << 20, 10, key()).unwrap().started());
    (0..50).for_each(|number| tier.write(hash(number), PageFormat::Q8, page(number)));
    drop(tier);
    let mut tier = open(folder.path(), 1 << 20);
    assert!((0..50).all(|number| tier.read(hash(number)).is_some_and(|saved| saved.bytes == page(number))));
}

#[test]
fn a_folder_that_is_gone_is_not_made_again_and_used_when_it_is_back() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("kv");
    let mut tier = open(&folder, 1 << 20);
    tier.write(hash(9), PageFormat::Q8, page(9));
    tier.flush();
    fs::rename(&folder, parent.path().join("elsewhere")).unwrap();
    for number in 0..3 {
        tier.write(hash(number), PageFormat::Q8, page(number));
    }
    tier.flush();
    assert!(tier.stats().is_paused && !tier.has_room(1));
    assert!((0..3).all(|number| tier.read(hash(number)).is_none()));
    assert!(!folder.exists());
    fs::rename(parent.path().join("elsewhere"), &folder).unwrap();
    assert!(tier.read(hash(9)).is_some(), "what was saved can be read meanwhile");
    while tier.stats().is_paused {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    tier.write(hash(1), PageFormat::Q8, page(1));
    assert_eq!(files(&tier).len(), 2);
}

/// As on a disk that is full: nothing can be added, and files can be removed.
#[test]
fn what_must_go_goes_while_nothing_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    tier.write(hash(0), PageFormat::Q8, page(0));
    let path = files(&tier).remove(0);
    let mut damaged = fs::read(&path).unwrap();
    damaged[100] ^= 1;
    fs::write(&path, damaged).unwrap();
    // The shelf of another page is a file, so that page cannot be written.
    let other = (1..).map(hash).find(|hash| tier.store().file(*hash).parent() != path.parent()).unwrap();
    fs::write(tier.store().file(other).parent().unwrap(), b"").unwrap();
    tier.write(other, PageFormat::Q8, page(1));
    tier.flush();
    assert!(tier.stats().is_paused);
    assert_eq!(tier.read(hash(0)), None);
    tier.flush();
    assert!(!path.exists());
    assert_eq!((tier.stats().pages, tier.stats().bytes), (0, 0));
}

#[test]
fn neither_texts_nor_their_hashes_can_be_read_from_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    tier.write(hash(0), PageFormat::Q8, vec![7; 1000]);
    let path = files(&tier).remove(0);
    let file = fs::read(&path).unwrap();
    assert!(!file.windows(8).any(|bytes| bytes == [7; 8]), "the page is encrypted");
    assert!(!file.windows(16).any(|bytes| bytes == hash(0).bytes()), "its hash is not in the file");
    let name: String = hash(0).bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_ne!(path.file_stem().unwrap().to_str(), Some(&*name), "nor is it the name of the file");
    // The same page again looks different: nobody can tell that it is the same.
    fs::remove_file(&path).unwrap();
    assert_eq!(tier.read(hash(0)), None);
    tier.write(hash(0), PageFormat::Q8, vec![7; 1000]);
    tier.flush();
    assert_ne!(fs::read(&path).unwrap(), file);
}

#[test]
fn with_another_key_there_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), 1 << 20);
    tier.write(hash(0), PageFormat::Q8, page(0));
    let path = files(&tier).remove(0);
    let other = DiskStore::open(folder.path(), 1 << 20, PageKey::new(&[2; 32])).unwrap();
    let mut other = DiskTier::new(other);
    assert_eq!((other.read(hash(0)), other.stats().damaged), (None, 0));
    // Nor if the file is put where that key looks for it.
    let there = other.store().file(hash(0));
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    fs::copy(&path, &there).unwrap();
    let mut other = DiskTier::new(DiskStore::open(folder.path(), 1 << 20, PageKey::new(&[2; 32])).unwrap());
    assert_eq!((other.read(hash(0)), other.stats().damaged), (None, 1));
    assert!(tier.read(hash(0)).is_some(), "the others' pages are left alone");
}

#[test]
fn pages_that_were_saved_without_encryption_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let shelf = folder.path().join("ab");
    fs::create_dir(&shelf).unwrap();
    let plain = shelf.join(format!("ab{}.kv", "0".repeat(30)));
    fs::write(&plain, b"RUVKV\x01 keys and values").unwrap();
    let tier = open(folder.path(), 1 << 20);
    assert!(!plain.exists());
    assert_eq!(tier.stats().pages, 0);
}

#[test]
fn engines_that_share_a_store_share_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), 5500);
    let mut tiers = [DiskTier::new(store.clone()), DiskTier::new(store)];
    for number in 0..20 {
        tiers[number as usize % 2].write(hash(number), PageFormat::F16, page(number));
        assert!(tiers[0].stats().bytes <= 5500);
    }
    assert!(bytes(&tiers[0]) <= 5500);
    assert!(tiers[0].read(hash(19)).is_some(), "what the other wrote is found");
}

#[test]
fn the_budget_holds_for_the_folder_whoever_writes_to_it() {
    let folder = tempfile::tempdir().unwrap();
    // Two processes could not share an index either.
    let mut tiers = [open(folder.path(), 32_000), open(folder.path(), 32_000)];
    for number in 0..200 {
        tiers[number as usize % 2].write(hash(number), PageFormat::F16, page(number));
        tiers[number as usize % 2].flush();
    }
    // Each looks at the folder again after a thirty-second part, here a page.
    let there: u64 = files_in(folder.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(there <= 32_000 + 3 * 1044, "{there} bytes are there");
    assert!(tiers[0].read(hash(197)).is_some(), "what the other wrote is found");
}

#[test]
fn what_another_process_writes_is_found_at_once_and_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    // Two processes could not share an index either.
    let [mut one, mut other] = [open(folder.path(), 1 << 20), open(folder.path(), 1 << 20)];
    assert!(!other.contains(hash(1)));
    one.write(hash(1), PageFormat::Q8, page(1));
    one.flush();
    assert!(other.contains(hash(1)));
    assert_eq!(other.stats().bytes, one.stats().bytes);
    other.write(hash(1), PageFormat::Q8, page(1));
    assert_eq!(other.stats().written, 0);
    assert_eq!(other.read(hash(1)), Some(SavedPage { format: Some(PageFormat::Q8), bytes: page(1) }));
    // Removed by the one, it is gone for the other as well.
    fs::remove_file(&files(&one)[0]).unwrap();
    assert_eq!(other.read(hash(1)), None);
    assert!(!other.contains(hash(1)));
}

#[test]
fn what_is_no_folder_to_write_to_cannot_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(DiskStore::open(&file, 1 << 20, key()).is_err());
    assert!(DiskStore::open(&file.join("below"), 1 << 20, key()).is_err());
    // Nothing can be written there, not even by an administrator.
    assert!(DiskStore::open(Path::new("/proc/self"), 1 << 20, key()).is_err());
}
