//! Makes a pack of its sources: modules are compiled or copied, and their hashes go into the manifest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use serde_json::Value;

use crate::manifest::{Manifest, ManifestError};
use crate::pack::{MANIFEST, PackError, SIGNATURE, hash_of, read_within};
use crate::sandbox::MODULE_BYTES_MAX;
use crate::signature::SecretKey;

const TARGET: &str = "wasm32-unknown-unknown";
/// What kernels are compiled with: small, without names, and the same bytes wherever that is done.
const OPTIONS: [&str; 8] = [
    "--edition=2024",
    "--crate-type=cdylib",
    "-Copt-level=3",
    "-Clto=fat",
    "-Ccodegen-units=1",
    "-Cpanic=abort",
    "-Cstrip=symbols",
    // One page of memory is for stack, data and tensors of small devices.
    "-Clink-arg=-zstack-size=8192",
];
/// The folder of modules that are compiled with it; it names the feature.
const SIMD_FOLDER: &str = "simd128";

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Pack(#[from] PackError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("{path} is no JSON object: {error}")]
    Json { path: PathBuf, error: serde_json::Error },
    #[error("{} is there already: give another folder, or remove it", .0.display())]
    Exists(PathBuf),
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot run rustc, which compiles the kernels: {0}")]
    NoCompiler(#[source] io::Error),
    #[error("rustc could not compile {module}{}:\n{said}", hint(said))]
    Compile { module: String, said: String },
}

fn hint(said: &str) -> &'static str {
    let lacks_target = said.contains("can't find crate for `core`");
    if lacks_target { " (rustup target add wasm32-unknown-unknown installs what is missing)" } else { "" }
}

/// Makes a pack in a new folder `out` of the folder `source`: its `kernels.json` and, for each module that this names, what
/// `src/lib.rs` is compiled to, a crate without dependencies; with `simd128` if the module is in a folder of that name. Without
/// a `src/lib.rs`, the modules themselves are there.
pub fn build(source: &Path, out: &Path) -> Result<Manifest, BuildError> {
    if out.exists() {
        return Err(BuildError::Exists(out.to_owned()));
    }
    let mut json = read_manifest(source)?;
    // Before it has hashes, for paths and ids.
    let manifest = Manifest::parse(json.to_string().as_bytes())?;
    let paths: BTreeSet<&str> = manifest.kernels.iter().map(|kernel| kernel.path.as_str()).collect();
    let is_rust = source.join("src/lib.rs").is_file();
    for path in paths {
        let to = out.join(path);
        let write = |error| BuildError::Write { path: to.clone(), error };
        fs::create_dir_all(to.parent().unwrap_or(out)).map_err(write)?;
        if is_rust {
            compile(source, path, &to)?;
        } else {
            fs::write(&to, read_within(source, path, MODULE_BYTES_MAX as u64)?).map_err(write)?;
        }
        let hash = hash_of(&read_within(out, path, MODULE_BYTES_MAX as u64)?);
        for kernel in json["kernels"].as_array_mut().into_iter().flatten().filter(|kernel| kernel["path"] == path) {
            kernel["hash"] = hash.clone().into();
        }
    }
    write_manifest(out, &json)?;
    Ok(Manifest::parse(json.to_string().as_bytes())?)
}

/// Names the key in the manifest of a folder, and signs it.
pub fn sign(folder: &Path, key: &SecretKey) -> Result<Manifest, BuildError> {
    let mut json = read_manifest(folder)?;
    json["author"]["key"] = key.public().to_string().into();
    let bytes = write_manifest(folder, &json)?;
    let path = folder.join(SIGNATURE);
    fs::write(&path, key.sign(&bytes)).map_err(|error| BuildError::Write { path, error })?;
    Ok(Manifest::parse(&bytes)?)
}

fn read_manifest(folder: &Path) -> Result<Value, BuildError> {
    let path = folder.join(MANIFEST);
    let bytes = read_within(folder, MANIFEST, crate::pack::MANIFEST_BYTES_MAX)?;
    let json: Value = serde_json::from_slice(&bytes).map_err(|error| BuildError::Json { path, error })?;
    Manifest::parse(&bytes)?;
    Ok(json)
}

fn write_manifest(folder: &Path, json: &Value) -> Result<Vec<u8>, BuildError> {
    let path = folder.join(MANIFEST);
    let text = format!("{json:#}\n").into_bytes();
    fs::write(&path, &text).map_err(|error| BuildError::Write { path, error })?;
    Ok(text)
}

fn compile(source: &Path, module: &str, to: &Path) -> Result<(), BuildError> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(BuildError::NoCompiler);
    let mut command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    // From within the folder, so that its own path is in nothing that is compiled.
    command.current_dir(source).args(["--target", TARGET, "--crate-name", "kernels"]).args(OPTIONS);
    let mut remap = absolute(source)?.into_os_string();
    remap.push("=.");
    command.arg("--remap-path-prefix").arg(remap);
    if Path::new(module).starts_with(SIMD_FOLDER) {
        command.arg("-Ctarget-feature=+simd128");
    }
    let output = command.arg("-o").arg(absolute(to)?).arg("src/lib.rs").output().map_err(BuildError::NoCompiler)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(BuildError::Compile { module: module.to_owned(), said })
}
