//! Kernel packs in the engine: the same text, whatever they do.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use ruvllm_kernels::KernelSet;
use ruvllm_memory::{Memory, MemoryOptions, PolicyQuery};
use ruvllm_packs::{LoadedPack, Pack, Sandbox, Trust, build, hash_of};
use ruvllm_runtime::{
    Engine, KernelChoice, KernelExperience, NATIVE_KERNEL, Prompt, Request, Sampling, kernel_experience,
};
use semver::Version;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{distance, failing_kernels, golden, logits, safetensors_folder, smollm2};

/// Operations of the default model.
const OPERATIONS: [(&str, [&str; 2]); 3] =
    [("rms_norm", ["x", "weight"]), ("rope", ["heads", "rotations"]), ("swiglu", ["gate", "up"])];

fn load(folder: &Path) -> Arc<LoadedPack> {
    let trust = Trust { keys: vec![], allow_unsigned: true };
    let pack = Pack::open(folder, &trust).expect("a pack");
    let sandbox = Sandbox::new().expect("a sandbox");
    Arc::new(LoadedPack::load(&sandbox, &pack, &Version::new(0, 1, 0), None).expect("it compiles"))
}

/// The included pack as it was built, once for all tests.
fn standard_folder() -> PathBuf {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs/standard");
        build(&source, &folder.path().join("standard")).expect("it is built");
        folder
    });
    built.path().join("standard")
}

fn standard() -> Arc<LoadedPack> {
    load(&standard_folder())
}

/// The included pack, which fails from the call with this number on.
fn failing_after(calls: u32) -> Arc<LoadedPack> {
    let folder = tempfile::tempdir().expect("a folder");
    let source = failing_kernels(folder.path(), calls);
    build(&source, &folder.path().join("out")).expect("it is built");
    load(&folder.path().join("out"))
}

fn engine(model: &Path, pack: Option<Arc<LoadedPack>>) -> Engine {
    let packs = pack.into_iter().collect();
    let builder = Engine::builder(model).context(Some(256)).threads(Some(2)).kernel_packs(packs, KernelChoice::Always);
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
    let (native, failing) = (engine(model.path(), None), engine(model.path(), Some(failing_after(100))));
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
            let packs = if swap % 2 == 0 { vec![Arc::clone(&pack)] } else { Vec::new() };
            engine.kernel_packs().set(packs, KernelChoice::Always)
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
    let error = engine.kernel_packs().set(vec![load(folder.path())], KernelChoice::Faster).expect_err("it is wrong");
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

/// What the memory knows of each kernel of this machine.
fn experience(memory: &Memory) -> Vec<KernelExperience> {
    kernel_experience(memory, KernelSet::best()).expect("records that can be read")
}

/// Replaces the records of all kernels by others.
fn rewrite(memory: &Memory, change: impl Fn(&mut Value)) {
    let query = PolicyQuery { tenant: Some(String::new()), kind: Some("kernel".to_owned()) };
    for mut policy in memory.policies().list(&query).expect("policies") {
        change(&mut policy.parameters);
        memory.policies().put(&policy, None).expect("it is stored");
    }
}

#[test]
fn what_is_remembered_of_kernels_chooses_and_changes_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Arc::new(Memory::open(MemoryOptions::in_folder(folder.path())).expect("a memory"));
    let (model, pack) = (safetensors_folder(&json!({})), standard());
    let expected = answer(&engine(model.path(), None));
    let start = || {
        let builder = Engine::builder(model.path()).context(Some(256)).threads(Some(2)).kernels(KernelSet::best());
        let builder = builder.kernel_packs(vec![Arc::clone(&pack)], KernelChoice::Faster);
        builder.kernel_memory(Some(Arc::clone(&memory))).build().expect("it loads")
    };
    let operations = |engine: &Engine| engine.kernel_packs().status().expect("a pack").operations;
    // Whatever is faster here.
    let first = start();
    assert_eq!(answer(&first), expected);
    let measured = operations(&first);
    assert_eq!(measured.len(), OPERATIONS.len());
    for operation in &measured {
        assert!(operation.candidates.iter().all(|candidate| candidate.timing.is_some()), "{operation:?}");
        assert!(operation.why.contains("the native kernel"), "{operation:?}");
    }
    let known = experience(&memory);
    assert!(known.len() == 3 && known.iter().all(|known| known.is_here && known.candidates.len() == 2), "{known:?}");

    // Wrong records have slower kernels chosen, and nothing else.
    for (pack_ns, native_ns, is_pack) in [(1.0, 1e8, true), (1e8, 1.0, false)] {
        rewrite(&memory, |record| {
            for (kernel, timing) in record["kernels"].as_object_mut().expect("kernels") {
                let ns = if kernel == NATIVE_KERNEL { native_ns } else { pack_ns };
                *timing = json!({ "ns": ns, "measured": 1000, "at_ms": 1 });
            }
        });
        let mut engine = start();
        for operation in operations(&engine) {
            assert_eq!(operation.chosen().kernel != NATIVE_KERNEL, is_pack, "{operation:?}");
            assert_eq!(operation.candidates[1].timing.expect("a time").measured, 1001);
        }
        let calls: u64 =
            engine.kernel_packs().status().expect("a pack").kernels.iter().map(|kernel| kernel.calls).sum();
        assert_eq!(calls, 0, "what was measured is not counted");
        assert_eq!(answer(&engine), expected);
        // Running calls are compared now and then, and what they took outvotes a wrong record in time.
        let prompt: Vec<u32> = (0..200).map(|i| 1 + i * 7 % 250).collect();
        (0..40).for_each(|_| drop(logits(&mut engine, &prompt)));
        engine.kernel_packs().remember(Duration::ZERO);
        let norm = operations(&engine).swap_remove(0).candidates.swap_remove(1).timing.expect("a time");
        assert_eq!((norm.measured, norm.at_ms > 1), (if is_pack { 1002 } else { 1001 }, true), "{norm:?}");
    }

    // What cannot be true, and what cannot be read, is measured anew.
    for senseless in [json!({ "ns": -5.0, "measured": 9, "at_ms": 0 }), json!("fast")] {
        rewrite(&memory, |record| record["kernels"][NATIVE_KERNEL] = senseless.clone());
        let engine = start();
        assert!(
            operations(&engine).iter().all(|operation| operation.candidates[0].timing.expect("a time").measured == 1)
        );
        assert_eq!(answer(&engine), expected);
    }
}

#[test]
fn of_several_packs_each_operation_is_taken_from_the_first_that_has_it() {
    let model = safetensors_folder(&json!({}));
    let (norms, all) = (only(&["rms_norm_f32"]), standard());
    let native = engine(model.path(), None);
    let packs = native.kernel_packs();
    let expected = answer(&native);
    packs.set(vec![norms, Arc::clone(&all)], KernelChoice::Always).expect("they are sound");
    assert_eq!(answer(&native), expected);
    let status = packs.status().expect("packs at work");
    let of = |category: &str| {
        let kernel = status.kernels.iter().find(|kernel| kernel.category.to_string() == category).expect(category);
        assert!(kernel.calls > 0, "{kernel:?}");
        kernel.pack.clone()
    };
    assert_eq!([of("rms_norm"), of("rope"), of("swiglu")].map(|pack| pack.contains("norms")), [true, false, false]);
    assert!(packs.set(vec![all; 9], KernelChoice::Always).is_err(), "more than can be at work");
}

/// Some kernels of the included pack, under another name.
fn only(kernels: &[&str]) -> Arc<LoadedPack> {
    let (source, folder) = (standard_folder(), tempfile::tempdir().expect("a folder"));
    let manifest = fs::read_to_string(source.join("kernels.json")).expect("a manifest");
    fs::write(folder.path().join("kernels.json"), manifest.replace("\"standard\"", "\"norms\""))
        .expect("it is written");
    for module in ["simd128", "plain"] {
        fs::create_dir(folder.path().join(module)).expect("it is made");
        let file = format!("{module}/standard.wasm");
        fs::copy(source.join(&file), folder.path().join(&file)).expect("it is copied");
    }
    let trust = Trust { keys: vec![], allow_unsigned: true };
    let pack = Pack::open(folder.path(), &trust).expect("a pack");
    let (sandbox, ids) = (Sandbox::new().expect("a sandbox"), kernels.iter().map(|id| (*id).to_owned()));
    let ids: Vec<String> = ids.collect();
    Arc::new(LoadedPack::load(&sandbox, &pack, &Version::new(0, 1, 0), Some(&ids)).expect("it compiles"))
}
