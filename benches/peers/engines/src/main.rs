//! llama.cpp and candle as measured processes: `peers-engines ENGINE START`, started by the peers benchmark.

#[cfg(feature = "candle")]
mod candle;
#[cfg(any(feature = "candle", feature = "llama-cpp"))]
mod greedy;
#[cfg(feature = "llama-cpp")]
mod llama_cpp;
mod versions;

use anyhow::{Result, bail};
use peers_protocol::serve;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [engine, start] = arguments.as_slice() else {
        bail!("usage: peers-engines ENGINE START; `cargo run --release -p peers` starts it");
    };
    match engine.as_str() {
        #[cfg(feature = "llama-cpp")]
        "llama.cpp" => serve(start, llama_cpp::load),
        #[cfg(feature = "candle")]
        "candle" => serve(start, candle::load),
        other => bail!("this program was built without the engine {other}"),
    }
}
