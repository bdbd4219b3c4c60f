//! Whose kernel packs are used, and where installed ones are.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_packs::{InstalledPacks, LoadedPack, Pack, PublicKey, Sandbox, Trust};
use ruvllm_runtime::KernelChoice;
use ruvllm_store::default_home;
use semver::Version;

#[derive(Clone, Debug, Default, Args)]
pub struct TrustFlags {
    /// Trust kernel packs that are signed with this key, such as ed25519:1f… (see `ruvllm kernels keygen`). Can be repeated, and
    /// set for all commands as kernel_key in config.toml
    #[arg(long, value_name = "KEY")]
    pub kernel_key: Vec<PublicKey>,
    /// Use a pack that nobody has signed; it is marked as unsigned wherever it is listed
    #[arg(long)]
    pub allow_unsigned: bool,
}

impl TrustFlags {
    pub fn trust(&self) -> Trust {
        Trust { keys: self.kernel_key.clone(), allow_unsigned: self.allow_unsigned }
    }
}

/// The kernel packs that models are run with.
#[derive(Clone, Debug, Default, Args)]
pub struct PackFlags {
    /// Take norms, rotations and activations from a kernel pack: the name of an installed one (see `ruvllm kernels`), or the
    /// path of a folder (with a slash) or a .tar.zst. Where one of its kernels fails, the native one computes instead. Can be
    /// repeated
    #[arg(long, value_name = "PACK")]
    kernel_pack: Vec<String>,
    /// What computes an operation that a kernel pack has a kernel for: `always` the pack, of several the one named first; or what
    /// is `faster` on this machine, the native kernel or one of the packs'. That is measured when a model is loaded; a server
    /// also keeps it in its memory and learns from running calls, and `ruvllm kernels why` explains it. Attention and products
    /// of matrices are native in any case
    #[arg(long, value_name = "CHOICE", value_parser = ["always", "faster"], default_value = KernelChoice::default().name())]
    kernel_choice: String,
    #[command(flatten)]
    trust: TrustFlags,
    /// One for all models of a process, since it reserves much address space.
    #[arg(skip)]
    sandbox: Arc<OnceLock<Sandbox>>,
}

impl PackFlags {
    /// Returns the packs that were asked for, checked and compiled.
    pub fn load(&self) -> Result<Vec<Arc<LoadedPack>>> {
        let trust = self.trust.trust();
        self.kernel_pack.iter().map(|spec| self.load_pack(&FoundPack::find(spec, &trust)?)).collect()
    }

    /// Returns what decides between the packs and the native kernels.
    pub fn choice(&self) -> KernelChoice {
        KernelChoice::from_name(&self.kernel_choice).unwrap_or_default()
    }

    pub fn is_set(&self) -> bool {
        !self.kernel_pack.is_empty()
    }

    /// Returns an installed pack, checked and compiled. HTTP clients name it, so it is no path.
    pub fn load_installed(&self, name: &str) -> Result<Arc<LoadedPack>> {
        self.load_pack(&FoundPack::installed(name, &self.trust.trust())?)
    }

    fn load_pack(&self, found: &FoundPack) -> Result<Arc<LoadedPack>> {
        let sandbox = match self.sandbox.get() {
            Some(sandbox) => sandbox,
            None => {
                let made = Sandbox::new()?;
                self.sandbox.get_or_init(|| made)
            }
        };
        Ok(Arc::new(found.load(sandbox)?))
    }
}

/// Returns the packs of this user.
pub fn installed_packs() -> Result<InstalledPacks> {
    Ok(InstalledPacks::in_folder(default_home()?.join("kernels")))
}

/// A checked pack, and which of its kernels may be used.
#[derive(Debug)]
pub struct FoundPack {
    pub pack: Pack,
    /// `None` is all.
    pub allowed: Option<Vec<String>>,
}

impl FoundPack {
    /// Finds and checks a pack: the path of a folder or an archive, or the name of one that is installed.
    pub fn find(spec: &str, trust: &Trust) -> Result<Self> {
        let path = Path::new(spec);
        if path.exists() && (spec.contains(std::path::is_separator) || path.extension().is_some()) {
            let pack = Pack::open(path, trust).with_context(|| format!("the kernel pack {spec} cannot be used"))?;
            return Ok(Self { pack, allowed: None });
        }
        let here = || format!("to use what is in this folder, name it as ./{spec}");
        let found = Self::installed(spec, trust);
        if path.exists() { found.with_context(here) } else { found }
    }

    /// Finds and checks an installed pack.
    fn installed(name: &str, trust: &Trust) -> Result<Self> {
        let (pack, installed) = installed_packs()?.open(name, trust)?;
        if !installed.enabled {
            bail!("the kernel pack {name} is disabled: `ruvllm kernels enable {name}` enables it");
        }
        Ok(Self { pack, allowed: installed.kernels })
    }

    /// Compiles it.
    pub fn load(&self, sandbox: &Sandbox) -> Result<LoadedPack> {
        let loaded = LoadedPack::load(sandbox, &self.pack, &runtime_version(), self.allowed.as_deref());
        loaded.with_context(|| format!("the kernel pack {} cannot be used", self.pack.manifest.name))
    }
}

/// Returns the version that packs are checked against.
pub fn runtime_version() -> Version {
    Version::parse(env!("CARGO_PKG_VERSION")).expect("Cargo's versions are versions")
}
