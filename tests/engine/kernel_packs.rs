//! Kernel packs in the engine: the same text, whatever they do.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ruvllm_packs::{LoadedPack, Pack, Sandbox, Trust, build, hash_of};
use ruvllm_runtime::{Engine, Prompt, Request, Sampling};
use semver::Version;
use serde_json::json;
use tempfile::TempDir;

use crate::support::{distance, golden, logits, safetensors_folder, smollm2};

/// Operations of the default model.
const OPERATIONS: [(&str, [&str; 2]); 3] =
    [("rms_norm", ["x", "weight"]), ("rope", ["heads", "rotations"]), ("swiglu", ["gate", "up"])];

fn load(folder: &Path) -> Arc<LoadedPack> {
    let trust = Trust { keys: vec![], allow_unsigned: true };
    let pack = Pack::open(folder, &trust).expect("a pack");
    let sandbox = Sandbox::new().expect("a sandbox");
    Arc::new(LoadedPack::load(&sandbox, &pack, &Version::new(0, 1, 0), None).expect("it compiles"))
}

fn standard() -> Arc<LoadedPack> {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("standard");
    build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("packs/standard"), &out).expect("it is built");
    load(&out)
}

/// The included pack, which fails from the call with this number on: its sources with a counter.
fn failing_after(calls: u32) -> Arc<LoadedPack> {
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs/standard");
    let copy = folder.path().join("source");
    fs::create_dir_all(copy.join("src")).expect("it is made");
    fs::copy(source.join("kernels.json"), copy.join("kernels.json")).expect("it is copied");
    for file in fs::read_dir(source.join("src")).expect("sources") {
        let file = file.expect("a file");
        fs::copy(file.path(), copy.join("src").join(file.file_name())).expect("it is copied");
    }
    let text = fs::read_to_string(copy.join("src/lib.rs")).expect("a file");
    let counter = format!(
        "static CALLS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);\n
        fn count() -> bool {{ CALLS.fetch_add(1, core::sync::atomic::Ordering::Relaxed) >= {calls} }}\n"
    );
    let body = "            if count() {\n                core::arch::wasm32::unreachable();\n            }\n";
    let begin = "pub extern \"C\" fn $name(descriptor: u32) -> i32 {\n";
    assert!(text.contains(begin));
    let text = text.replace(begin, &format!("{begin}{body}"));
    fs::write(copy.join("src/lib.rs"), format!("{text}\n{counter}")).expect("it is written");
    build(&copy, &folder.path().join("out")).expect("it is built");
    load(&folder.path().join("out"))
}

fn engine(model: &Path, pack: Option<Arc<LoadedPack>>) -> Engine {
    let builder = Engine::builder(model).context(Some(256)).threads(Some(2)).kernel_pack(pack);
    builder.build().expect("it loads")
}

fn answer(engine: &Engine) -> String {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let prompt = Prompt::Text("The colours of the rainbow are".into());
    let request = Request { max_tokens: Some(100), sampling, ..Request::new(prompt) };
    let mut text = String::new();
    for piece in &mut engine.stream(request).expect("a stream") {
        text.push_str(piece.expect("a piece").text());
    }
    text
}

#[test]
fn logits_are_those_of_native_kernels() {
    // Weights in floats, where nothing is rounded to few digits.
    let model = safetensors_folder(&json!({}));
    let (mut native, mut with_pack) = (engine(model.path(), None), engine(model.path(), Some(standard())));
    let prompt: Vec<u32> = (0..200).map(|i| 1 + i * 7 % 250).collect();
    for tokens in [&prompt[..], &prompt[..1]] {
        let (expected, got) = (logits(&mut native, tokens), logits(&mut with_pack, tokens));
        let furthest = expected.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(furthest <= 0.02, "{furthest}");
        assert!(furthest > 0.0, "the pack was used");
    }
    assert_eq!(answer(&native), answer(&with_pack));
    let status = with_pack.kernel_packs().status().expect("a pack at work");
    for (category, _) in OPERATIONS {
        let kernel = status.kernels.iter().find(|kernel| kernel.category.to_string() == category).expect(category);
        assert!(kernel.calls > 100 && kernel.failed == 0, "{kernel:?}");
    }
}

#[test]
fn a_quantized_model_is_as_close_as_with_another_instruction_set() {
    // Inputs of matrices are rounded to 8 bits: where one falls to the other side, logits move as they do between kernel sets
    // (up to 0.3 and more, root mean square), from the last digit of a sum on.
    let (mut native, mut with_pack) = (engine(&smollm2(), None), engine(&smollm2(), Some(standard())));
    for prompt in &golden()[..3] {
        let (expected, got) = (logits(&mut native, &prompt.tokens), logits(&mut with_pack, &prompt.tokens));
        let far = distance(&expected, &got);
        assert!(far < 0.5, "{}: {far}", prompt.name);
    }
}

#[test]
fn kernels_that_fail_on_the_way_change_no_text() {
    // More calls than the check before makes, and few enough that it fails again and again in an answer.
    let model = safetensors_folder(&json!({}));
    let (native, failing) = (engine(model.path(), None), engine(model.path(), Some(failing_after(70))));
    assert_eq!(answer(&failing), answer(&native));
    let packs = failing.kernel_packs();
    let status = packs.status().expect("it is at work");
    assert!(status.kernels.iter().any(|kernel| kernel.is_disabled && kernel.failed >= 3), "{status:?}");
    // What was used before is nothing: it comes back by itself.
    packs.maintain();
    assert!(packs.status().is_none() && packs.withdrawn() == 1);
    assert_eq!(answer(&failing), answer(&native));
}

#[test]
fn a_hundred_swaps_under_eight_answers_change_no_text_and_leave_nothing_behind() {
    let model = safetensors_folder(&json!({}));
    let builder = Engine::builder(model.path()).context(Some(256)).threads(Some(2)).sequences(8);
    let engine = builder.build().expect("it loads");
    let (expected, pack, is_done) = (answer(&engine), standard(), AtomicBool::new(false));
    let swap = |count: usize| {
        (0..count).try_for_each(|swap| {
            thread::sleep(Duration::from_millis(2));
            engine.kernel_packs().set((swap % 2 == 0).then(|| Arc::clone(&pack)))
        })
    };
    // As after the last of them: what is kept for a rollback counts.
    swap(2).expect("it is swapped");
    let held = Arc::strong_count(&pack);
    let answers: Vec<usize> = thread::scope(|scope| {
        let ask = || {
            let mut answers = 0;
            while !is_done.load(Ordering::Relaxed) {
                assert_eq!(answer(&engine), expected);
                answers += 1;
            }
            answers
        };
        let streams: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        let swapped = swap(100);
        // First of all, or they would go on for ever.
        is_done.store(true, Ordering::Relaxed);
        swapped.expect("it is swapped");
        streams.into_iter().map(|stream| stream.join().expect("its answers are right")).collect()
    });
    assert!(answers.iter().all(|answers| *answers > 0), "{answers:?}");
    assert_eq!(Arc::strong_count(&pack), held, "somebody still holds a pack that was swapped out");
}

#[test]
fn a_pack_that_computes_something_else_never_comes_to_work() {
    let folder = wrong_pack();
    let model = safetensors_folder(&json!({}));
    let engine = engine(model.path(), None);
    let error = engine.kernel_packs().set(Some(load(folder.path()))).expect_err("it is wrong");
    assert!(error.to_string().contains("rms_norm differs from the reference"), "{error}");
    assert!(engine.kernel_packs().status().is_none());
    assert!(engine.kernel_packs().rollback().is_err());
}

/// A pack whose kernels copy what they are given.
fn wrong_pack() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let module = wat::parse_str(
        r#"(module (memory (export "memory") 1) (global (export "__heap_base") i32 (i32.const 64))
            (func (export "kernel_info") (param i32) (result i32)
                (i64.store (local.get 0) (i64.const 0x1000000001)) (i64.store offset=8 (local.get 0) (i64.const 0)) (i32.const 0))
            (func (export "kernel_init") (param i32 i32) (result i32) (i32.const 0))
            (func (export "kernel_cleanup") (result i32) (i32.const 0))
            (func (export "kernel_forward") (param $d i32) (result i32)
                (memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d)) (i32.load offset=4 (local.get $d)))
                (i32.const 0)))"#,
    );
    let module = module.expect("a module");
    let tensor = |name: &str| json!({ "name": name, "dtype": "f32", "shape": ["n"] });
    let kernels = OPERATIONS.map(|(category, inputs)| {
        let param = |name: &str, kind: &str| json!({ "name": name, "type": kind, "default": 0 });
        let params = match category {
            "rms_norm" => vec![param("epsilon", "f32")],
            "rope" => vec![param("head_dim", "u32"), param("pairs", "u32"), param("interleaved", "u32")],
            _ => vec![],
        };
        json!({ "id": category, "category": category, "path": "copy.wasm", "hash": hash_of(&module), "params": params,
                "inputs": inputs.map(tensor), "outputs": [tensor("out")], "platforms": [{ "runtime": "any" }] })
    });
    let manifest = json!({ "schema": 1, "name": "wrong", "version": "1.0.0", "kernels": kernels });
    fs::write(folder.path().join("kernels.json"), manifest.to_string()).expect("it is written");
    fs::write(folder.path().join("copy.wasm"), module).expect("it is written");
    folder
}
