//! `ruvllm kernels bench`: a pack's kernels beside the native ones.

use anyhow::Result;
use clap::Args;
use ruvllm_kernels::ops::Activation;
use ruvllm_packs::{Measured, ModelShapes, Operation, measure};
use serde_json::{Value, json};

use super::checked;
use crate::flags::pack::{FoundPack, TrustFlags};
use crate::output;

/// Measure the kernels of a pack beside the native ones, on one thread
#[derive(Debug, Args)]
pub struct Bench {
    /// Path of a folder (with a slash) or a .tar.zst, or name of an installed pack
    #[arg(value_name = "PACK")]
    pack: String,
    /// Width of the residual stream
    #[arg(long, value_name = "N", default_value_t = ModelShapes::default().hidden)]
    hidden: usize,
    /// Width of feed-forward blocks
    #[arg(long, value_name = "N", default_value_t = ModelShapes::default().feed_forward)]
    feed_forward: usize,
    /// Rounds of calls, of which the fastest is shown
    #[arg(long, value_name = "N", default_value_t = 51)]
    rounds: usize,
    #[command(flatten)]
    trust: TrustFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn execute(self) -> Result<()> {
        let kernels = checked(&FoundPack::find(&self.pack, &self.trust.trust())?)?;
        let ModelShapes { heads, head_dim, pairs, rope_style: style, .. } = ModelShapes::default();
        let gated = |activation| Operation::Gated { activation, len: self.feed_forward };
        let operations = [
            Operation::RmsNorm { len: self.hidden },
            Operation::RmsNorm { len: 4096 },
            Operation::Rope { heads, head_dim, pairs, style },
            gated(Activation::Silu),
            gated(Activation::GeluTanh),
        ];
        let measure = |operation| Some((operation, measure(&kernels, operation, self.rounds)?));
        let measured: Vec<(Operation, Measured)> = operations.into_iter().filter_map(measure).collect();
        let compile_ms = kernels.pack().compile_time().as_secs_f64() * 1e3;
        if self.json {
            let rows: Vec<Value> = measured.iter().map(to_json).collect();
            return output::json(&json!({ "kernels": rows, "compile_ms": compile_ms }));
        }
        let heading = ["OPERATION", "NUMBERS", "PACK", "NATIVE", "RATIO"].map(str::to_owned).to_vec();
        output::table(&[heading].into_iter().chain(measured.iter().map(cells)).collect::<Vec<_>>())?;
        output::remark(&format!("compiled in {compile_ms:.1} ms"));
        Ok(())
    }
}

fn ratio(measured: &Measured) -> f64 {
    measured.pack.as_secs_f64() / measured.native.as_secs_f64().max(1e-9)
}

fn name(operation: &Operation) -> String {
    operation.category().map_or_else(String::new, |category| category.to_string())
}

fn cells((operation, measured): &(Operation, Measured)) -> Vec<String> {
    let ns = |time: std::time::Duration| format!("{} ns", time.as_nanos());
    vec![
        name(operation),
        operation.numbers().to_string(),
        ns(measured.pack),
        ns(measured.native),
        format!("{:.2}", ratio(measured)),
    ]
}

fn to_json((operation, measured): &(Operation, Measured)) -> Value {
    json!({
        "operation": name(operation),
        "numbers": operation.numbers(),
        "pack_ns": measured.pack.as_nanos() as u64,
        "native_ns": measured.native.as_nanos() as u64,
        "ratio": ratio(measured),
    })
}
