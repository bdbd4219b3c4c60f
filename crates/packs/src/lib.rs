//! Kernel packs: small WebAssembly modules of third parties that compute operations of a forward pass.
//!
//! A pack is a folder or an archive: a signed manifest, and modules whose hashes are in it ([`Pack`]). What has been checked is
//! compiled by the [`Sandbox`], which bounds time and memory of everything that runs ([`LoadedPack`]), compared with the reference
//! ([`shadow_check`]), and called by forward passes ([`PackKernels`], or [`ChosenKernels`] of several packs). Knows neither models
//! nor HTTP.

#[cfg(target_endian = "big")]
compile_error!("tensors are handed to kernels as they are in memory, which must be little-endian");

mod abi;
mod build;
mod chosen;
mod gates;
mod installed;
mod loaded;
pub mod manifest;
mod measure;
mod pack;
mod row_kernels;
mod sandbox;
mod shadow;
mod shapes;
mod signature;

pub use abi::{ABI_VERSION, KernelCode};
pub use build::{BuildError, build, sign};
pub use chosen::ChosenKernels;
pub use gates::GateError;
pub use installed::{InstalledError, InstalledPack, InstalledPacks};
pub use loaded::{LoadError, LoadedKernel, LoadedPack};
pub use manifest::{Category, Kernel, Manifest, ManifestError};
pub use measure::{Measured, measure};
pub use pack::{MANIFEST, Pack, PackError, SIGNATURE, Trust, hash_of, write_archive};
pub use row_kernels::{KernelStatus, PackKernels};
pub use sandbox::{
    Call, Fault, Instance, InstanceLimits, MODULE_BYTES_MAX, Module, ModuleError, Number, Sandbox, SandboxError,
};
pub use shadow::{ShadowError, shadow_check};
pub use shapes::{ModelShapes, Operation};
pub use signature::{KeyFileError, PublicKey, SecretKey, SignatureError, verify};
