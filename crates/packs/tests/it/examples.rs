//! The examples of docs/kernel-packs.md. Those that other compilers make are followed by tests/clients.

use std::path::Path;
use std::sync::Arc;

use ruvllm_kernels::KernelSet;
use ruvllm_packs::{LoadedPack, ModelShapes, Pack, PackKernels, Sandbox, Trust, build, shadow_check};
use semver::Version;

#[test]
fn the_example_in_rust_computes_what_the_reference_computes() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("norm");
    build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packs/examples/rust"), &out).unwrap();
    let pack = Pack::open(&out, &Trust { keys: vec![], allow_unsigned: true }).unwrap();
    let loaded = LoadedPack::load(&Sandbox::new().unwrap(), &pack, &Version::new(0, 1, 0), None).unwrap();
    shadow_check(&PackKernels::new(Arc::new(loaded), 1, KernelSet::best()), ModelShapes::default()).unwrap();
}
