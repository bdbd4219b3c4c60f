//! The machine's ceilings, and which share of them a rate of tokens is.

use ruvllm_kernels::ceilings::Ceilings;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::models::Cost;

/// The share of the ceiling that limits a work, at `tok_s` tokens per second, of an engine that multiplies bytes or bf16.
pub fn share(ceilings: &Ceilings, cost: Cost, in_bf16: bool, tok_s: f64) -> Option<f64> {
    match cost {
        Cost::ReadBytes(bytes) => Some(bytes * tok_s / ceilings.read_bytes_s),
        Cost::Operations(operations) => {
            let most = if in_bf16 { ceilings.bf16_ops_s } else { ceilings.byte_ops_max_s() };
            most.map(|most| operations * tok_s / most)
        }
    }
}

pub fn serialize<S: Serializer>(ceilings: &Ceilings, serializer: S) -> Result<S::Ok, S::Error> {
    let fields = json!({
        "threads": ceilings.threads,
        "read_gb_s": ceilings.read_bytes_s / 1e9,
        "float_gop_s": ceilings.float_ops_s.map(|ops| ops / 1e9),
        "byte_gop_s": ceilings.byte_ops_s.map(|ops| ops / 1e9),
        "tile_gop_s": ceilings.tile_ops_s.map(|ops| ops / 1e9),
        "bf16_gop_s": ceilings.bf16_ops_s.map(|ops| ops / 1e9),
    });
    fields.serialize(serializer)
}

pub fn lines(ceilings: &Ceilings) -> Vec<String> {
    let rate = |name: &str, ops: Option<f64>| ops.map(|ops| format!("{name} {:.0} GOP/s", ops / 1e9));
    let arithmetic = [
        rate("byte tiles (AMX)", ceilings.tile_ops_s),
        rate("bf16 tiles", ceilings.bf16_ops_s),
        rate("byte vectors", ceilings.byte_ops_s),
        rate("float vectors", ceilings.float_ops_s),
    ];
    let arithmetic: Vec<String> = arithmetic.into_iter().flatten().collect();
    vec![
        format!(
            "Ceilings measured in this run, {} threads: reading memory {:.1} GB/s; {}.",
            ceilings.threads,
            ceilings.read_bytes_s / 1e9,
            arithmetic.join(", ")
        ),
        "Shares: for decode, weights and KV read per second of the memory ceiling (a model that fits the last-level cache \
         can exceed it); for prefill, operations with weights of the fastest byte ceiling (of bf16 tiles for fast ones)."
            .to_owned(),
    ]
}
