//! Builds the peers. They are workspaces of their own, whose `.cargo/config.toml` asks for this very processor.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::candidates::{LLAMA_CPP, MISTRAL_RS};

/// What building llama.cpp needs beside Rust, and the Debian packages that have it.
const TOOLS: [(&str, &str); 2] = [("cmake", "cmake"), ("clang-19", "clang-19 libclang-19-dev libomp-19-dev")];

/// The program that runs mistral.rs.
pub fn build_mistral_rs() -> Result<PathBuf> {
    build("mistralrs", "peers-mistralrs", "peers-mistralrs", &[])
}

/// The program that runs all other peers among `engines`.
pub fn build_engines(engines: &[String], without_openmp: bool) -> Result<PathBuf> {
    let llama = if without_openmp { "llama-cpp" } else { "openmp" };
    let others = engines.iter().filter(|engine| *engine != MISTRAL_RS && *engine != crate::candidates::RUVLLM);
    let features: Vec<&str> = others.map(|engine| if engine == LLAMA_CPP { llama } else { engine.as_str() }).collect();
    if features.contains(&llama) {
        check_tools()?;
    }
    // A folder for each kind of llama.cpp, so that going from one to the other does not compile it anew.
    let target = if without_openmp { "peers-engines" } else { "peers-engines-openmp" };
    build("engines", target, "peers-engines", &features)
}

/// Builds the workspace in `folder` and returns its program.
fn build(folder: &str, target: &str, program: &str, features: &[&str]) -> Result<PathBuf> {
    // Beside the product's own build: other flags would otherwise make each build undo the other.
    let target = target_folder().join(target);
    eprintln!("building {program} in {}; the first time takes minutes", target.display());
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--locked", "--no-default-features", "--features", &features.join(",")])
        .arg("--target-dir")
        .arg(&target)
        // Cargo looks for its flags in and above the folder it runs in.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .stdin(Stdio::null())
        .status()
        .context("cargo cannot be started")?;
    ensure!(status.success(), "{program} cannot be built: {status}; `--engines ruvllm` measures without peers");
    Ok(target.join("release").join(format!("{program}{}", std::env::consts::EXE_SUFFIX)))
}

/// A compiler of the user's own choice is not second-guessed; the fairness check looks at the result.
fn check_tools() -> Result<()> {
    for (tool, packages) in TOOLS {
        let chosen = tool.starts_with("clang") && std::env::var_os("CC").is_some();
        let asked = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
        let here = asked.is_ok_and(|status| status.success());
        ensure!(
            here || chosen,
            "building llama.cpp needs {tool}: apt-get install {packages}, or leave it out with --engines"
        );
    }
    Ok(())
}

/// Where cargo put this program: `TARGET/release/peers`.
fn target_folder() -> PathBuf {
    let own = std::env::current_exe().ok();
    own.as_deref().and_then(|path| path.ancestors().nth(2)).map_or_else(|| PathBuf::from("target"), Path::to_owned)
}
