//! A pack whose modules are compiled.

use std::collections::BTreeMap;
use std::time::Duration;

use semver::Version;

use crate::gates::GateError;
use crate::manifest::{Category, Dtype, Kernel};
use crate::pack::Pack;
use crate::sandbox::{Call, Fault, Instance, Module, ModuleError, Number, Sandbox};
use crate::signature::PublicKey;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error("module {path} {error}")]
    Module { path: String, error: ModuleError },
    #[error("there is no kernel '{0}' in the pack")]
    NoSuchKernel(String),
}

#[derive(Debug)]
pub struct LoadedPack {
    pub name: String,
    pub version: Version,
    pub digest: String,
    /// Whose signature it has; `None` if it is unsigned.
    pub signer: Option<PublicKey>,
    /// Those that can run here and were allowed, in the order of the manifest.
    pub kernels: Vec<LoadedKernel>,
    modules: Vec<Module>,
}

#[derive(Debug)]
pub struct LoadedKernel {
    pub kernel: Kernel,
    module: usize,
    entry: usize,
    /// Parameters behind those of its category.
    further_params: Vec<u8>,
}

/// Parameters of a call, without memory of their own.
struct Params {
    bytes: [u8; 64],
    len: usize,
}

impl LoadedPack {
    /// Compiles what can run on this version of RuvLLM, of all kernels or of those with these ids.
    pub fn load(
        sandbox: &Sandbox,
        pack: &Pack,
        runtime: &Version,
        allowed: Option<&[String]>,
    ) -> Result<Self, LoadError> {
        let manifest = &pack.manifest;
        manifest.check_runtime(runtime)?;
        if let Some(unknown) = allowed.into_iter().flatten().find(|id| manifest.kernel(id).is_none()) {
            return Err(LoadError::NoSuchKernel(unknown.clone()));
        }
        let is_allowed = |kernel: &&Kernel| allowed.is_none_or(|allowed| allowed.contains(&kernel.id));
        let runs = |kernel: &&Kernel| kernel.missing_features().is_empty();
        let usable: Vec<&Kernel> = manifest.kernels.iter().filter(is_allowed).filter(runs).collect();
        let mut by_path: BTreeMap<&str, Vec<&Kernel>> = BTreeMap::new();
        for kernel in &usable {
            by_path.entry(&kernel.path).or_default().push(kernel);
        }
        let mut modules = Vec::new();
        for (path, kernels) in &by_path {
            let entries: Vec<&str> = kernels.iter().map(|kernel| kernel.entry.as_str()).collect();
            let params: Vec<u8> = kernels.iter().flat_map(|kernel| default_params(kernel, 0)).collect();
            let compiled = sandbox.compile(pack.module(path), &entries, &params, kernels[0].limits.into());
            modules.push(compiled.map_err(|error| LoadError::Module { path: (*path).to_owned(), error })?);
        }
        let kernels = usable.iter().map(|kernel| {
            let module = by_path.keys().position(|path| *path == kernel.path).expect("its module was compiled");
            let entry = by_path[kernel.path.as_str()].iter().position(|other| other.id == kernel.id);
            let further_params = default_params(kernel, kernel.category.params().len());
            let entry = entry.expect("it is among those of its module");
            LoadedKernel { kernel: (*kernel).clone(), module, entry, further_params }
        });
        Ok(Self {
            name: manifest.name.clone(),
            version: manifest.version.clone(),
            digest: pack.digest(),
            signer: pack.signer,
            kernels: kernels.collect(),
            modules,
        })
    }

    /// Returns the first kernel that computes this.
    pub fn find(&self, category: Category, dtype: Dtype) -> Option<usize> {
        self.kernels
            .iter()
            .position(|loaded| loaded.kernel.category == category && loaded.kernel.dtypes().first() == Some(&dtype))
    }

    /// Returns what it is called in logs and answers: its name and version, and whether nobody vouches for it.
    pub fn label(&self) -> String {
        let unsigned = if self.signer.is_none() { " (unsigned)" } else { "" };
        format!("{}@{}{unsigned}", self.name, self.version)
    }

    /// Returns how long its modules took to compile.
    pub fn compile_time(&self) -> Duration {
        self.modules.iter().map(Module::compile_time).sum()
    }

    /// Returns an instance of each module.
    pub fn instances(&self) -> Vec<Instance> {
        self.modules.iter().map(Instance::new).collect()
    }

    /// Calls a kernel in the instances of one thread. `params` are those of its category; `a` is what `out` holds if it is `None`.
    pub fn call(
        &self,
        instances: &mut [Instance],
        kernel: usize,
        params: &[u32],
        a: Option<&[u8]>,
        b: &[u8],
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let LoadedKernel { kernel, module, entry, further_params } = &self.kernels[kernel];
        let params = Params::new(params, further_params);
        let out_type = match kernel.outputs[0].dtype {
            Dtype::F32 => Number::F32,
            Dtype::F16 => Number::F16,
            Dtype::Q8_0 | Dtype::Q4_0 => Number::Byte,
        };
        instances[*module].forward(Call { entry: *entry, params: params.as_slice(), a, b, out, out_type })
    }
}

fn default_params(kernel: &Kernel, from: usize) -> Vec<u8> {
    kernel.params[from..].iter().flat_map(|param| param.default_bytes()).collect()
}

impl Params {
    /// There are at most sixteen, which the manifest's check has seen to.
    fn new(first: &[u32], further: &[u8]) -> Self {
        let mut bytes = [0; 64];
        let first_len = 4 * first.len();
        for (to, param) in bytes.chunks_exact_mut(4).zip(first) {
            to.copy_from_slice(&param.to_le_bytes());
        }
        bytes[first_len..first_len + further.len()].copy_from_slice(further);
        Self { bytes, len: first_len + further.len() }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
