//! Which KV formats the default model bears, and that this is measured once.

use crate::support::smollm2;
use ruvllm_runner::PageFormat;
use ruvllm_runtime::{Engine, KvChoice};

fn build(folder: &std::path::Path, context: usize) -> Engine {
    let builder = Engine::builder(smollm2()).context(Some(context)).kv(KvChoice::Auto);
    builder.calibration_folder(folder.to_owned()).build().expect("the default model loads")
}

#[test]
fn the_cold_format_is_measured_once_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(build(folder.path(), 1024).cold_format(), None, "short texts have no cold pages");
    let first = build(folder.path(), 4096).cold_format().cloned().expect("it was chosen");
    println!("{first:?}");
    assert!(first.measured.iter().all(|(_, _, divergence)| divergence.is_finite() && *divergence >= 0.0));
    let (format, _, divergence) = first.measured.last().copied().expect("something was measured");
    assert!(first.format == PageFormat::Q8 || (format == first.format && divergence <= 0.005));
    let file = std::fs::read_dir(folder.path()).expect("it is there").next().expect("a file").expect("a file").path();
    let text = std::fs::read_to_string(&file).expect("it can be read").replace(&format!("{:?}", divergence), "0.25");
    std::fs::write(&file, text).expect("it can be written");
    let second = build(folder.path(), 4096).cold_format().cloned().expect("it was chosen");
    assert_eq!(second.measured.last().map(|last| last.2), Some(0.25), "what was kept is taken");
    std::fs::write(&file, "{").expect("it can be written");
    let third = build(folder.path(), 4096).cold_format().cloned().expect("it was chosen");
    assert_eq!(third, first, "what cannot be read is measured again");
}
