//! A kernel pack from anywhere: its manifest, or a whole archive.

use std::fs;

use ruvllm_packs::{Manifest, Pack, Trust};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

pub fn run(bytes: &[u8]) {
    if bytes.starts_with(&ZSTD_MAGIC) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pack.tar.zst");
        fs::write(&path, bytes).expect("it is written");
        let _ = Pack::open(&path, &Trust { keys: Vec::new(), allow_unsigned: true });
        return;
    }
    let Ok(manifest) = Manifest::parse(bytes) else { return };
    let version = manifest.version.clone();
    let _ = manifest.check_runtime(&version);
    for kernel in &manifest.kernels {
        // What can be used is a kernel of the pack, with all limits as they are checked.
        let runnable = manifest.runnable(&kernel.id);
        assert!(runnable.is_none_or(|runnable| runnable.category == kernel.category));
        assert!(
            kernel.limits.memory_pages <= 256
                && kernel.limits.budget_ms <= 100
                && !kernel.path.split('/').any(|part| part == "..")
        );
    }
}
