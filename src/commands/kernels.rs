//! `ruvllm kernels`: kernel packs on this machine.

mod bench;
mod list;
mod make;
mod serving;
mod show;
mod why;

use anyhow::Result;
use clap::{Args, Subcommand};
use ruvllm_kernels::KernelSet;
use ruvllm_packs::{PackKernels, Sandbox, shadow_check};
use serde_json::json;

use crate::flags::pack::{FoundPack, TrustFlags, installed_packs};
use crate::output;

/// Build, sign, verify, install and list kernel packs
///
/// A kernel pack has small WebAssembly modules that compute operations of a forward pass, such as norms. They run in a sandbox
/// with limits of time and memory; where one fails, the operation is computed natively. Packs are signed, and no key is trusted
/// before you say so: `--kernel-key`, or kernel_key in config.toml.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm kernels keygen my.key\n  \
                        ruvllm kernels build packs/standard --out standard\n  \
                        ruvllm kernels sign standard --secret-key my.key\n  \
                        ruvllm kernels install standard/ --kernel-key ed25519:…\n  \
                        ruvllm kernels bench standard")]
pub struct Kernels {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Keygen(make::Keygen),
    Build(make::Build),
    Sign(make::Sign),
    Verify(Verify),
    Install(Install),
    List(list::List),
    Show(show::Show),
    Bench(bench::Bench),
    Enable(Enable),
    Disable(Disable),
    Rollback(Rollback),
    Rm(Rm),
    Load(serving::Load),
    Unload(serving::Unload),
    Status(serving::Status),
    Why(why::Why),
}

/// Check a pack as it would be checked before it is used: signature, hashes, versions, then compiled and compared with the reference
#[derive(Debug, Args)]
struct Verify {
    /// Path of a folder or a .tar.zst, or name of an installed pack
    #[arg(value_name = "PACK")]
    pack: String,
    #[command(flatten)]
    trust: TrustFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Check a pack and copy it to this machine's packs, ~/.ruvllm/kernels
///
/// A version that was installed before is kept: `ruvllm kernels rollback` goes back to it.
#[derive(Debug, Args)]
struct Install {
    /// Path of a folder (with a slash) or a .tar.zst
    #[arg(value_name = "PATH")]
    pack: String,
    #[command(flatten)]
    trust: TrustFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Let an installed pack be used, or some of its kernels only
#[derive(Debug, Args)]
struct Enable {
    /// Name of the pack
    name: String,
    /// Ids of the kernels that may be used, as shown by `ruvllm kernels show` [default: all]
    #[arg(value_name = "KERNEL")]
    kernels: Vec<String>,
    #[command(flatten)]
    trust: TrustFlags,
}

/// Keep an installed pack from being used
#[derive(Debug, Args)]
struct Disable {
    /// Name of the pack
    name: String,
}

/// Go back to the version of a pack that was installed before
#[derive(Debug, Args)]
struct Rollback {
    /// Name of the pack
    name: String,
}

/// Remove packs from this machine, with all their versions
#[derive(Debug, Args)]
struct Rm {
    /// Names of packs
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Kernels {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::Keygen(keygen) => keygen.execute(),
            What::Build(build) => build.execute(),
            What::Sign(sign) => sign.execute(),
            What::Verify(verify) => verify.execute(),
            What::Install(install) => install.execute(),
            What::List(list) => list.execute(),
            What::Show(show) => show.execute(),
            What::Bench(bench) => bench.execute(),
            What::Enable(enable) => enable.execute(),
            What::Load(load) => load.execute(),
            What::Unload(unload) => unload.execute(),
            What::Status(status) => status.execute(),
            What::Why(why) => why.execute(),
            What::Disable(Disable { name }) => {
                installed_packs()?.enable(&name, false, None)?;
                output::line(&format!("{name} is disabled"))
            }
            What::Rollback(Rollback { name }) => {
                installed_packs()?.rollback(&name)?;
                output::line(&format!("{name} is the version before again"))
            }
            What::Rm(Rm { names }) => names.iter().try_for_each(|name| {
                installed_packs()?.remove(name)?;
                output::line(&format!("removed {name}"))
            }),
        }
    }
}

impl Verify {
    fn execute(self) -> Result<()> {
        let found = FoundPack::find(&self.pack, &self.trust.trust())?;
        let kernels = checked(&found)?;
        let count = kernels.pack().kernels.len();
        if self.json {
            let mut object = show::to_json(&found.pack);
            object["usable_kernels"] = json!(count);
            return output::json(&object);
        }
        output::line(&format!("{} is sound: {count} kernels can be used here", show::label(&found.pack)))
    }
}

impl Install {
    fn execute(self) -> Result<()> {
        let found = FoundPack::find(&self.pack, &self.trust.trust())?;
        checked(&found)?;
        installed_packs()?.install(&found.pack)?;
        if self.json {
            return output::json(&show::to_json(&found.pack));
        }
        output::line(&format!("{} is installed", show::label(&found.pack)))
    }
}

impl Enable {
    fn execute(self) -> Result<()> {
        let (pack, _) = installed_packs()?.open(&self.name, &self.trust.trust())?;
        if let Some(unknown) = self.kernels.iter().find(|id| pack.manifest.kernel(id).is_none()) {
            let (pack, kernel) = (self.name, unknown.clone());
            return Err(ruvllm_packs::InstalledError::NoSuchKernel { pack, kernel }.into());
        }
        let which = if self.kernels.is_empty() { "all kernels".to_owned() } else { self.kernels.join(", ") };
        installed_packs()?.enable(&self.name, true, Some(self.kernels).filter(|ids| !ids.is_empty()))?;
        output::line(&format!("{} is enabled: {which}", self.name))
    }
}

/// Compiles a pack and compares its kernels with the reference.
fn checked(found: &FoundPack) -> Result<PackKernels> {
    let loaded = found.load(&Sandbox::new()?)?;
    let kernels = PackKernels::new(loaded.into(), 1, KernelSet::best());
    shadow_check(&kernels, Default::default())?;
    Ok(kernels)
}
