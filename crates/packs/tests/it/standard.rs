//! The included pack, built from its sources: the same bytes everywhere, and the right numbers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytemuck::{cast_slice, cast_slice_mut};
use half::f16;
use ruvllm_kernels::ops::{Activation, RopeStyle};
use ruvllm_kernels::{KernelSet, WeightType, dequantize_row, quantize_row, reference};
use ruvllm_packs::manifest::Dtype;
use ruvllm_packs::{
    BuildError, Category, LoadedPack, ModelShapes, Pack, PackKernels, Sandbox, SecretKey, Trust, build, shadow_check,
    sign,
};
use semver::Version;
use tempfile::TempDir;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packs/standard");

/// The pack, built once for all tests of this program.
fn pack() -> &'static Pack {
    static PACK: OnceLock<Pack> = OnceLock::new();
    PACK.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("standard");
        build(Path::new(SOURCE), &out).unwrap();
        let key = SecretKey::generate().unwrap();
        sign(&out, &key).unwrap();
        Pack::open(&out, &Trust { keys: vec![key.public()], allow_unsigned: false }).unwrap()
    })
}

/// Its kernels with SIMD, or those without.
fn loaded(variant: &str) -> Arc<LoadedPack> {
    let ids = pack().manifest.kernels.iter().filter(|kernel| kernel.path.starts_with(variant));
    let ids: Vec<String> = ids.map(|kernel| kernel.id.clone()).collect();
    let sandbox = Sandbox::new().unwrap();
    Arc::new(LoadedPack::load(&sandbox, pack(), &Version::new(0, 1, 0), Some(&ids)).unwrap())
}

/// Calls a kernel on bytes.
fn call(pack: &LoadedPack, category: Category, dtype: Dtype, params: &[u32], a: &[u8], b: &[u8], out: &mut [u8]) {
    let kernel = pack.find(category, dtype).unwrap();
    pack.call(&mut pack.instances(), kernel, params, Some(a), b, out).unwrap();
}

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 + seed * 11) % 101) as f32 / 25.0 - 2.0).collect()
}

fn halves(numbers: &[f32]) -> Vec<u16> {
    numbers.iter().map(|x| f16::from_f32(*x).to_bits()).collect()
}

fn widened(halves: &[u16]) -> Vec<f32> {
    halves.iter().map(|half| f16::from_bits(*half).to_f32()).collect()
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32], tolerance: f32) {
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance * (1.0 + expected.abs()), "{i}: {got} is not {expected}");
    }
}

fn copy_sources(to: &Path) -> PathBuf {
    fs::create_dir_all(to.join("src")).unwrap();
    fs::copy(Path::new(SOURCE).join("kernels.json"), to.join("kernels.json")).unwrap();
    for file in fs::read_dir(Path::new(SOURCE).join("src")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join("src").join(file.file_name())).unwrap();
    }
    to.to_owned()
}

fn all_files(of: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |name: &str| (name.to_owned(), fs::read(of.join(name)).unwrap());
    ["kernels.json", "simd128/standard.wasm", "plain/standard.wasm"].map(read).to_vec()
}

#[test]
fn it_is_the_same_bytes_wherever_it_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let built = |name: &str| {
        let source = copy_sources(&folder.path().join(name));
        build(&source, &folder.path().join(format!("{name}-out"))).unwrap();
        all_files(&folder.path().join(format!("{name}-out")))
    };
    let (one, other) = (built("a"), built("another/folder with a longer name"));
    assert_eq!(one, other);
    for (name, bytes) in &one {
        let path = folder.path().to_str().unwrap().as_bytes();
        assert!(!bytes.windows(path.len()).any(|window| window == path), "{name} has a path in it");
    }
}

#[test]
fn it_passes_the_check_of_hot_upgrades_with_and_without_simd() {
    for variant in ["simd128", "plain"] {
        let kernels = PackKernels::new(loaded(variant), 1, KernelSet::best());
        shadow_check(&kernels, ModelShapes::default()).unwrap();
        let large = ModelShapes {
            hidden: 4096,
            heads: 40,
            head_dim: 128,
            pairs: 48,
            rope_style: RopeStyle::Halves,
            feed_forward: 11_008,
            ..ModelShapes::default()
        };
        shadow_check(&kernels, large).unwrap();
        assert_eq!(kernels.status().len(), 4);
        assert!(kernels.status().iter().all(|status| status.failed == 0 && !status.is_disabled));
    }
}

#[test]
fn half_floats_are_rounded_as_everywhere() {
    let pack = loaded("simd128");
    let (x, weight) = (numbers(96, 1), numbers(96, 2));
    let (x16, weight16) = (halves(&x), halves(&weight));
    let mut out = vec![0u16; 96];
    let params = [1e-5f32.to_bits()];
    let bytes = cast_slice_mut(&mut out);
    call(&pack, Category::RmsNorm, Dtype::F16, &params, cast_slice(&x16), cast_slice(&weight16), bytes);
    let expected = reference::rms_norm(&widened(&x16), &widened(&weight16), 1e-5);
    assert_close(&widened(&out), &expected, 1e-3);
    for (category, activation) in [(Category::Swiglu, Activation::Silu), (Category::Geglu, Activation::GeluTanh)] {
        let bytes = cast_slice_mut(&mut out);
        call(&pack, category, Dtype::F16, &[], cast_slice(&x16), cast_slice(&weight16), bytes);
        let expected = reference::gated(activation, &widened(&weight16), &widened(&x16));
        assert_close(&widened(&out), &expected, 1e-3);
    }
    // Turned by nothing, every half float stays what it is: also the smallest, and the largest.
    let all: Vec<u16> = (0..=u16::MAX).filter(|half| half & 0x7c00 != 0x7c00).collect();
    let mut same = vec![0u16; all.len()];
    let (still, params) = ([[1f32, 0.0]], [all.len() as u32, 1, 0]);
    call(&pack, Category::Rope, Dtype::F16, &params, cast_slice(&all), cast_slice(&still), cast_slice_mut(&mut same));
    let is_same = |(a, b): (&u16, &u16)| a == b || (a & 0x7fff == 0 && b & 0x7fff == 0);
    assert!(all.iter().zip(&same).all(is_same));
}

#[test]
fn blocks_of_kv_are_those_of_gguf() {
    for variant in ["simd128", "plain"] {
        let pack = loaded(variant);
        let x: Vec<f32> = numbers(256, 3).into_iter().enumerate().map(|(i, x)| x * (1 + i / 32) as f32).collect();
        for (dtype, kind) in [(Dtype::Q8_0, WeightType::Q8_0), (Dtype::Q4_0, WeightType::Q4_0)] {
            let mut expected = Vec::new();
            quantize_row(kind, &x, &mut expected).unwrap();
            // Both directions have blocks of the type on one side.
            let find = |category| {
                let of_type = |loaded: &ruvllm_packs::LoadedKernel| {
                    let tensors = loaded.kernel.inputs.iter().chain(&loaded.kernel.outputs);
                    loaded.kernel.category == category && tensors.clone().any(|tensor| tensor.dtype == dtype)
                };
                pack.kernels.iter().position(of_type).unwrap()
            };
            let mut blocks = vec![0; expected.len()];
            let (there, back) = (find(Category::KvQuantize), find(Category::KvDequantize));
            pack.call(&mut pack.instances(), there, &[], Some(cast_slice(&x)), &[], &mut blocks).unwrap();
            let (mut got, mut floats) = (vec![0f32; x.len()], vec![0f32; x.len()]);
            pack.call(&mut pack.instances(), back, &[], Some(&blocks), &[], cast_slice_mut(&mut got)).unwrap();
            dequantize_row(kind, &blocks, &mut floats);
            assert_eq!(got, floats, "{variant}, {kind:?}");
            dequantize_row(kind, &expected, &mut floats);
            let step = if kind == WeightType::Q8_0 { 0.01 } else { 0.15 };
            for (block, (got, x)) in got.chunks(32).zip(x.chunks(32)).enumerate() {
                assert_close(got, x, step * (1 + block) as f32);
            }
        }
    }
}

#[test]
fn lora_factors_are_applied() {
    let (columns, rows, rank) = (50, 24, 5);
    let (x, factors) = (numbers(columns, 4), numbers(rank * (columns + rows), 5));
    let (down, up) = factors.split_at(rank * columns);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
    let between: Vec<f32> = down.chunks(columns).map(|row| dot(row, &x)).collect();
    let expected: Vec<f32> = up.chunks(rank).map(|row| 0.5 * dot(row, &between)).collect();
    let params = [rank as u32, 0.5f32.to_bits()];
    for variant in ["simd128", "plain"] {
        let pack = loaded(variant);
        let mut out = vec![0f32; rows];
        let bytes = cast_slice_mut(&mut out);
        call(&pack, Category::LoraApply, Dtype::F32, &params, cast_slice(&x), cast_slice(&factors), bytes);
        assert_close(&out, &expected, 1e-4);
        let mut out = vec![0u16; rows];
        let (x, factors) = (halves(&x), halves(&factors));
        let bytes = cast_slice_mut(&mut out);
        call(&pack, Category::LoraApply, Dtype::F16, &params, cast_slice(&x), cast_slice(&factors), bytes);
        assert_close(&widened(&out), &expected, 2e-2);
    }
}

#[test]
fn both_builds_give_the_same_bits() {
    let (x, weight) = (numbers(1000, 6), numbers(1000, 7));
    let norms = ["simd128", "plain"].map(|variant| {
        let mut out = vec![0f32; 1000];
        let bytes = cast_slice_mut(&mut out);
        let params = [1e-6f32.to_bits()];
        call(&loaded(variant), Category::RmsNorm, Dtype::F32, &params, cast_slice(&x), cast_slice(&weight), bytes);
        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
    assert_eq!(norms[0], norms[1]);
}

#[test]
fn nothing_is_written_where_something_is() {
    let folder: TempDir = tempfile::tempdir().unwrap();
    assert!(matches!(build(Path::new(SOURCE), folder.path()), Err(BuildError::Exists(_))));
}
