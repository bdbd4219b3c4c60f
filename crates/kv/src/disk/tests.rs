use std::fs;
use std::path::PathBuf;

use ruvllm_kernels::ops::PageFormat;

use super::page_file::SavedPage;
use super::*;
use crate::prefix::{Namespace, PageHash};

fn hash(number: u32) -> PageHash {
    Namespace::of(&[b"test"]).root().next(&[number])
}

fn page(number: u32) -> Vec<u8> {
    (0..1000).map(|i| (i * 7 + number as usize) as u8).collect()
}

fn files(folder: &std::path::Path) -> Vec<PathBuf> {
    let shelves = fs::read_dir(folder).unwrap().flatten();
    shelves.flat_map(|shelf| fs::read_dir(shelf.path()).unwrap().flatten().map(|file| file.path())).collect()
}

#[test]
fn pages_are_found_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = DiskTier::open(folder.path(), 1 << 20).unwrap();
    for number in 0..5 {
        tier.write(hash(number), PageFormat::Q8, &page(number)).unwrap();
    }
    drop(tier);
    let mut tier = DiskTier::open(folder.path(), 1 << 20).unwrap();
    assert_eq!(tier.stats().pages, 5);
    assert_eq!(tier.read(hash(3)), Some(SavedPage { format: PageFormat::Q8, bytes: page(3) }));
    assert_eq!(tier.read(hash(9)), None);
}

#[test]
fn the_budget_holds_and_what_is_used_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = DiskTier::open(folder.path(), 5500).unwrap();
    for number in 0..5 {
        tier.write(hash(number), PageFormat::F16, &page(number)).unwrap();
    }
    tier.read(hash(0)).unwrap();
    tier.write(hash(5), PageFormat::F16, &page(5)).unwrap();
    assert!(tier.contains(hash(0)) && !tier.contains(hash(1)));
    let on_disk: u64 = files(folder.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert_eq!(on_disk, tier.stats().bytes);
    assert!(on_disk <= 5500);
    // A smaller budget at the next start holds as well, and so does the order of use.
    drop(tier);
    let tier = DiskTier::open(folder.path(), 2200).unwrap();
    assert_eq!(tier.stats().pages, 2);
    assert!(tier.contains(hash(5)));
}

#[test]
fn damage_is_noticed_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = DiskTier::open(folder.path(), 1 << 20).unwrap();
    tier.write(hash(0), PageFormat::Q8, &page(0)).unwrap();
    let path = files(folder.path()).remove(0);
    let sound = fs::read(&path).unwrap();
    let mut damages = 0;
    for at in (0..sound.len()).step_by(37) {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        let mut tier = DiskTier::open(folder.path(), 1 << 20).unwrap();
        assert_eq!(tier.read(hash(0)), None, "byte {at}");
        assert!(!path.exists() && !tier.contains(hash(0)));
        damages += tier.stats().damaged;
    }
    assert_eq!(damages, sound.len().div_ceil(37) as u64);
    for len in [0, 10, 59, 60, sound.len() - 1] {
        fs::write(&path, &sound[..len]).unwrap();
        assert_eq!(DiskTier::open(folder.path(), 1 << 20).unwrap().read(hash(0)), None, "{len} bytes");
    }
}

#[test]
fn a_page_under_another_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = DiskTier::open(folder.path(), 1 << 20).unwrap();
    tier.write(hash(0), PageFormat::Q8, &page(0)).unwrap();
    let path = files(folder.path()).remove(0);
    let bytes = fs::read(&path).unwrap();
    tier.write(hash(1), PageFormat::Q8, &page(1)).unwrap();
    let other = files(folder.path()).into_iter().find(|file| *file != path).unwrap();
    fs::write(&other, bytes).unwrap();
    assert_eq!(tier.read(hash(1)), None);
    assert_eq!(tier.stats().damaged, 1);
}

#[test]
fn what_others_remove_or_leave_behind_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = DiskTier::open(folder.path(), 1 << 20).unwrap();
    tier.write(hash(0), PageFormat::Q8, &page(0)).unwrap();
    let path = files(folder.path()).remove(0);
    fs::write(path.with_extension("77.part"), b"half a page").unwrap();
    fs::write(path.with_extension("txt"), b"a note").unwrap();
    let mut tier = DiskTier::open(folder.path(), 1 << 20).unwrap();
    assert_eq!((tier.stats().pages, files(folder.path()).len()), (1, 2));
    fs::remove_file(&path).unwrap();
    assert_eq!(tier.read(hash(0)), None);
    assert_eq!((tier.stats().pages, tier.stats().bytes, tier.stats().damaged), (0, 0, 0));
}
