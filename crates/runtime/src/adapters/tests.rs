use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

use ruvllm_model::Model;
use ruvllm_model::formats::gguf::Gguf;
use tempfile::TempDir;

use super::*;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// Adapters of a tiny model.
fn adapters() -> Adapters {
    let gguf = Gguf::open(golden("architectures/llama3/model.gguf")).unwrap();
    let model = Model::load(&gguf, 64, &mut |_| {}).unwrap();
    Adapters::new(
        "native",
        Some(AdapterBase {
            targets: model.adapter_targets(),
            resident: Arc::default(),
            buffers: AdapterBuffers::default(),
        }),
    )
}

fn is_resident(adapters: &Adapters, id: AdapterId) -> bool {
    adapters.base().unwrap().resident.get(id).is_some()
}

/// Folders with the weights of one adapter, and settings that tell them apart.
fn copies(count: usize) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let source = golden("adapters/llama3-qv");
    let weights = folder.path().join("weights");
    fs::copy(source.join("adapter_model.safetensors"), &weights).unwrap();
    let settings = fs::read_to_string(source.join("adapter_config.json")).unwrap();
    let copy = |number: usize| {
        let copy = folder.path().join(number.to_string());
        fs::create_dir(&copy).unwrap();
        fs::hard_link(&weights, copy.join("adapter_model.safetensors")).unwrap();
        fs::write(copy.join("adapter_config.json"), settings.replacen('{', &format!("{{\"copy\": {number},"), 1))
            .unwrap();
        copy
    };
    let copies = (0..count).map(copy).collect();
    (folder, copies)
}

#[test]
fn what_a_request_holds_stays_in_memory_until_it_ends() {
    let adapters = adapters();
    let registered = adapters.register(golden("adapters/llama3-qv")).unwrap();
    let RegisteredAdapter { id, bytes, .. } = registered;
    assert_eq!((registered.ranks, registered.changes_kv, registered.invocation), ((4, 4), true, None));
    assert!(!is_resident(&adapters, id), "it is cold");
    let held = adapters.hold(&[(id, 1.0)]).unwrap();
    assert_eq!((held.id, held.changes_kv, held.start(&[1, 2])), (id, true, 0));
    assert_eq!(adapters.stats().hot_bytes, bytes, "as foretold");
    adapters.unregister(id);
    adapters.set_budget(0);
    assert!(is_resident(&adapters, id));
    let another = held.clone();
    drop(held);
    assert_eq!(adapters.stats().hot, 1);
    assert!(matches!(adapters.hold(&[(id, 1.0)]), Err(AdapterError::NotRegistered(_))));
    drop(another);
    assert_eq!((adapters.stats().hot, adapters.stats().hot_bytes), (0, 0));
    assert!(!is_resident(&adapters, id));
}

#[test]
fn several_adapters_are_one_by_their_weights() {
    let adapters = adapters();
    let one = adapters.register(golden("adapters/llama3-qv")).unwrap().id;
    let other = adapters.register(golden("adapters/llama3-all")).unwrap().id;
    let activated = adapters.register(golden("adapters/llama3-activated")).unwrap().id;
    let hold = |parts: &[(AdapterId, f32)]| adapters.hold(parts).map(|held| held.id);
    let both = hold(&[(one, 1.0), (other, 0.5)]).unwrap();
    assert_eq!(hold(&[(one, 1.0), (other, 0.5)]).unwrap(), both);
    let ids = [hold(&[(one, 1.0)]), hold(&[(one, 0.5)]), hold(&[(one, 1.0), (other, 0.25)])].map(Result::unwrap);
    assert_eq!(ids[0], one);
    assert!(!ids.contains(&both) && ids[1] != one);
    assert_eq!((adapters.stats().loads, adapters.stats().hits), (4, 1));
    assert!(matches!(hold(&[(one, 1.0), (activated, 1.0)]), Err(AdapterError::MixedInvocation(id)) if id == activated));
    assert!(matches!(hold(&[(one, f32::NAN)]), Err(AdapterError::Weight { .. })));
    assert!(matches!(hold(&[]), Err(AdapterError::Count { count: 0, .. })));
    assert!(matches!(hold(&[(one, 1.0); 9]), Err(AdapterError::Count { count: 9, .. })));
}

#[test]
fn a_file_that_changes_after_it_was_registered_is_not_used() {
    let (_folder, copies) = copies(1);
    let adapters = adapters();
    let id = adapters.register(copies[0].clone()).unwrap().id;
    fs::copy(golden("adapters/llama3-qv/adapter_config.json"), copies[0].join("adapter_config.json")).unwrap();
    let changed = adapters.hold(&[(id, 1.0)]).unwrap_err();
    assert!(matches!(&changed, AdapterError::Changed(path) if path.ends_with("0")), "{changed}");
    assert_eq!((adapters.stats().hot, adapters.stats().hot_bytes), (0, 0));
}

#[test]
fn a_backend_without_adapters_refuses_them_by_its_name() {
    let message = Adapters::new("candle", None).register(golden("adapters/llama3-qv")).unwrap_err().to_string();
    assert!(message.contains("candle") && message.contains("native"), "{message}");
}

#[test]
fn many_are_registered_and_loaded_by_several_threads_within_the_budget() {
    let (_folder, copies) = copies(200);
    let adapters = adapters();
    let ids: Vec<AdapterId> = copies.iter().map(|copy| adapters.register(copy.clone()).unwrap().id).collect();
    let budget = adapters.get(ids[0]).unwrap().bytes * 20;
    adapters.set_budget(budget);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (adapters, ids) = (&adapters, &ids);
                scope.spawn(move || {
                    for step in 0..100 {
                        let id = ids[(worker * 31 + step * 7) % ids.len()];
                        let held = adapters.hold(&[(id, 1.0)]).unwrap();
                        assert!(is_resident(adapters, held.id));
                    }
                })
            })
            .collect();
        let (adapters, copies, ids, is_done) = (&adapters, &copies, &ids, &is_done);
        scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                assert!(adapters.stats().hot_bytes <= budget);
                // Replaced by itself, while others use it.
                adapters.register(copies[3].clone()).unwrap();
                assert!(adapters.get(ids[3]).is_some());
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
    });
    let stats = adapters.stats();
    assert_eq!((stats.registered, stats.loads + stats.hits), (200, 400));
    assert!(stats.evictions > 0 && stats.hot <= 20);
}
