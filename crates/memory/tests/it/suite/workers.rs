//! The servers that share a memory.

use ruvllm_memory::{Memory, MemoryError, Worker, WorkerModel};

fn worker(id: &str, models: &[(&str, &str)]) -> Worker {
    let model = |(name, fingerprint): &(&str, &str)| WorkerModel {
        name: (*name).to_owned(),
        fingerprint: (*fingerprint).to_owned(),
        ..WorkerModel::default()
    };
    let (id, address) = (id.to_owned(), format!("http://{id}:8080"));
    Worker { id, address, models: models.iter().map(model).collect(), ..Worker::default() }
}

pub fn workers_come_and_go(memory: &Memory) {
    let (a, mut b) = (worker("a", &[("m", "1")]), worker("b", &[]));
    memory.workers().join(&a).unwrap();
    memory.workers().join(&b).unwrap();
    b.models = worker("b", &[("n", "2")]).models;
    b.models[0].running = 3;
    memory.workers().put(&b).unwrap();
    let mut found: Vec<Worker> = memory.workers().list().unwrap().into_iter().map(|seen| seen.worker).collect();
    found.sort_by(|left, right| left.id.cmp(&right.id));
    assert_eq!(found, [a, b.clone()]);
    assert!(memory.workers().list().unwrap().iter().all(|seen| seen.is_alive));
    memory.workers().leave("a").unwrap();
    let left = memory.workers().list().unwrap();
    assert_eq!(left.into_iter().map(|seen| seen.worker).collect::<Vec<_>>(), [b]);
}

pub fn workers_that_share_a_memory_serve_the_same_file_under_a_name(memory: &Memory) {
    memory.workers().join(&worker("a", &[("m", "1"), ("n", "2")])).unwrap();
    memory.workers().join(&worker("b", &[("m", "1"), ("o", "3")])).unwrap();
    let refused = memory.workers().join(&worker("c", &[("o", "3"), ("n", "4")])).unwrap_err();
    assert!(matches!(&refused, MemoryError::OtherModel { model, .. } if model == "n"), "{refused}");
    assert!(refused.to_string().contains("http://a:8080"), "{refused}");
    assert_eq!(memory.workers().list().unwrap().len(), 2, "it was not added");
    // Its own entry is no other worker's, and one that has left is in nobody's way.
    memory.workers().join(&worker("a", &[("n", "4")])).unwrap();
    memory.workers().leave("a").unwrap();
    memory.workers().join(&worker("c", &[("n", "2")])).unwrap();
}
