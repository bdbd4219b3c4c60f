//! A really full disk: a small file system in memory. Mounting one takes root; elsewhere these tests say so and pass.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::support::*;
use ruvllm_store::{Event, Store, StoreError};

const SIZE: usize = 6 << 20;

/// A mounted tmpfs of a given size; unmounted when dropped.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(megabytes: u32) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(folder.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(SmallDisk { folder });
        }
        eprintln!("skipped: this user may not mount a tmpfs");
        None
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).status();
    }
}

fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

#[test]
fn too_little_space_is_told_before_the_transfer() {
    let Some(disk) = SmallDisk::mount(8) else { return };
    let server = Server::start(|request, _| Reply::file(request, &content(SIZE), "\"a\""));
    let store = Store::with_config(config(disk.path(), &server.url, toy(&content(SIZE), vec![hub_source()])));
    let error = store.pull("toy", &mut quiet).unwrap_err();
    let StoreError::DiskFull { needed_bytes, free_bytes: Some(free), .. } = &error else { panic!("{error}") };
    assert!(*needed_bytes >= SIZE as u64 && *free < *needed_bytes);
    let said = error.to_string();
    assert!(said.contains(&needed_bytes.to_string()) && said.contains(&free.to_string()), "{said}");
}

#[test]
fn a_disk_that_fills_up_meanwhile_keeps_what_can_be_resumed() {
    let Some(disk) = SmallDisk::mount(24) else { return };
    let server = Server::start(|request, _| Reply::file(request, &content(SIZE), "\"a\""));
    // The hub alone knows how to go on; a second source would only meet the same full disk.
    let sources = vec![hub_source(), hub_source()];
    let store = Store::with_config(config(disk.path(), &server.url, toy(&content(SIZE), sources)));
    let ballast = disk.path().join("ballast");
    let mut first = true;
    let error = store
        .pull("toy", &mut |event| {
            if matches!(event, Event::Bytes { .. }) && std::mem::take(&mut first) {
                fill(&ballast);
            }
        })
        .unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    assert_eq!(server.requests().len(), 1);
    fs::remove_file(&ballast).unwrap();
    let model = store.pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert!(server.requests()[1].range_start().is_some_and(|start| start > 0));
}
