//! `cargo bench -p ruvllm-kernels`: every kernel on the shapes of two models, beside what the machine can do at most.
//!
//! Options after `--`: `--threads N` (all cores), `--only TEXT` (kernels whose name contains it), `--json`.

mod attention;
mod gemm;
mod low_rank;
mod matmul;
mod measure;
mod rows;
#[allow(dead_code)]
#[path = "../../tests/it/support/mod.rs"]
mod support;

use ruvllm_kernels::ceilings::Ceilings;
use ruvllm_kernels::{KernelSet, Pool};

use crate::measure::{Bench, Result};

/// The dimensions of a model that kernels see.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub hidden: usize,
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub layers: usize,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "135M", hidden: 576, feed_forward: 1536, heads: 9, kv_heads: 3, head_dim: 64, layers: 30 },
    Shape { name: "1.1B", hidden: 2048, feed_forward: 5632, heads: 32, kv_heads: 4, head_dim: 64, layers: 22 },
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after =
        |flag: &str| arguments.iter().position(|argument| argument == flag).and_then(|at| arguments.get(at + 1));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = after("--threads").and_then(|text| text.parse().ok()).unwrap_or(cores);
    let (kernels, ceilings) = (KernelSet::best(), Ceilings::measure(threads));
    let json = arguments.iter().any(|argument| argument == "--json");
    if json {
        println!("{}", ceilings_json(&ceilings, kernels));
    } else {
        println!("{} kernels, {ceilings:?}", kernels.name());
        println!("{}", Result::HEADING);
    }
    let report = |result: Result| println!("{}", if json { result.json() } else { result.line() });
    let only = after("--only").cloned().unwrap_or_default();
    let mut bench = Bench { pool: Pool::new(threads, kernels), ceilings, only, report: &report };
    for shape in SHAPES {
        matmul::run(&mut bench, shape);
        attention::run(&mut bench, shape);
        low_rank::run(&mut bench, shape);
        rows::run(&mut bench, shape);
        gemm::run(&mut bench, shape);
    }
}

fn ceilings_json(ceilings: &Ceilings, kernels: KernelSet) -> String {
    let giga = |ops: Option<f64>| ops.map_or_else(|| "null".to_owned(), |ops| format!("{:.1}", ops / 1e9));
    format!(
        r#"{{"kernels":"{}","threads":{},"read_gb_s":{:.2},"float_gop_s":{},"byte_gop_s":{},"tile_gop_s":{},"bf16_gop_s":{}}}"#,
        kernels.name(),
        ceilings.threads,
        ceilings.read_bytes_s / 1e9,
        giga(ceilings.float_ops_s),
        giga(ceilings.byte_ops_s),
        giga(ceilings.tile_ops_s),
        giga(ceilings.bf16_ops_s)
    )
}
