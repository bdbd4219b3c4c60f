use ruvllm_runtime::Engine;
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let threads: usize = args[2].parse().unwrap();
    let reps: usize = args[3].parse().unwrap();
    let mut e = Engine::builder(&args[1]).context(Some(1024)).threads(Some(threads)).build().unwrap();
    let core = e.core();
    let ns = [1usize, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 24, 32, 64, 128];
    let mut best = vec![f64::MAX; ns.len()];
    for _ in 0..reps {
        for (i, n) in ns.iter().enumerate() {
            let t: Vec<u32> = (0..*n).map(|i| (i * 37 + 1000) as u32).collect();
            let s = Instant::now();
            core.evaluate(&t, 0..*n, |_, _| {}).unwrap();
            best[i] = best[i].min(s.elapsed().as_secs_f64());
        }
    }
    for (i, n) in ns.iter().enumerate() {
        println!(
            "{n:3} rows {:8.3} ms ratio {:.3} c {:.3}",
            best[i] * 1e3,
            best[i] / best[0],
            (best[i] / best[0] - 1.0) / (*n as f64 - 1.0).max(1.0)
        );
    }
}
