//! Replays the corpus of a fuzz target, so that what was found once is tested everywhere. Included by the tests of crates.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A slow input is a finding too. Generous, as tests share the machine.
const INPUT_TIME_MAX: Duration = Duration::from_secs(20);

pub fn replay(target: &str, body: fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("fuzz/corpus").is_dir());
    let folder = root.expect("the repository").join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(&folder).expect("a corpus").map(|file| file.expect("a file").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    for path in paths {
        let bytes = fs::read(&path).expect("readable");
        let started = Instant::now();
        let outcome = std::panic::catch_unwind(|| body(&bytes));
        assert!(outcome.is_ok(), "{} fails", path.display());
        assert!(started.elapsed() < INPUT_TIME_MAX, "{} took {:?}", path.display(), started.elapsed());
    }
}
