//! mistral.rs as a measured process: `peers-mistralrs mistralrs START`, started by the peers benchmark.

mod engine;

use anyhow::{Result, bail};
use peers_protocol::serve;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [engine, start] if engine == "mistralrs" => serve(start, engine::load),
        _ => bail!("usage: peers-mistralrs mistralrs START; `cargo run --release -p peers` starts it"),
    }
}
