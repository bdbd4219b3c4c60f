//! Packs whose kernels do something else than they should, in the place where forward passes call them.

use std::fs;
use std::sync::Arc;

use ruvllm_kernels::KernelSet;
use ruvllm_kernels::ops::{Activation, RowKernels, RowOperation};
use ruvllm_packs::{Fault, LoadError, LoadedPack, ModelShapes, Pack, PackKernels, Sandbox, shadow_check};
use semver::Version;
use serde_json::json;

use crate::sandbox::module;
use crate::support::TestPack;

const GATED: RowOperation = RowOperation::Gated(Activation::Silu);

/// A pack whose SwiGLU is this.
fn pack(body: &str) -> TestPack {
    let forward = format!(r#"(func (export "kernel_forward") (param $d i32) (result i32) {body})"#);
    let pack = TestPack::with_module(&module(&forward));
    pack.sign();
    pack
}

fn load(pack: &TestPack) -> Result<LoadedPack, LoadError> {
    let opened = Pack::open(pack.folder.path(), &pack.trust()).unwrap();
    LoadedPack::load(&Sandbox::new().unwrap(), &opened, &Version::new(0, 1, 0), None)
}

fn kernels(body: &str) -> PackKernels {
    PackKernels::new(Arc::new(load(&pack(body)).unwrap()), 2, KernelSet::best())
}

fn gate(kernels: &PackKernels, worker: usize) -> (bool, Vec<f32>) {
    let (mut gate, up) = (vec![1.0, -2.0, 0.5, 3.0], vec![1.0; 4]);
    (kernels.gated(worker, Activation::Silu, &up, &mut gate), gate)
}

/// Writes half of each gate, which looks like an activation.
const PLAUSIBLE: &str = r#"(local $i i32)
    (loop $next
        (f32.store (i32.add (i32.load offset=16 (local.get $d)) (local.get $i))
            (f32.mul (f32.const 0.5) (f32.load (i32.add (i32.load (local.get $d)) (local.get $i)))))
        (local.set $i (i32.add (local.get $i) (i32.const 4)))
        (br_if $next (i32.lt_u (local.get $i) (i32.load offset=4 (local.get $d)))))
    (i32.const 0)"#;

#[test]
fn a_kernel_that_fails_leaves_its_row_as_it_was_and_is_off_after_three_strikes() {
    for (body, fault) in [
        ("(unreachable)", Fault::Unreachable),
        ("(loop $again (br $again)) (i32.const 0)", Fault::Deadline { budget_ms: 5 }),
        ("(i32.const 0)", Fault::NotFinite { index: 0 }),
    ] {
        let kernels = kernels(body);
        for strike in 0..3 {
            assert!(kernels.has(GATED), "strike {strike}");
            assert_eq!(gate(&kernels, strike % 2), (false, vec![1.0, -2.0, 0.5, 3.0]));
        }
        let status = kernels.status().remove(0);
        assert!(status.is_disabled && !kernels.has(GATED));
        assert_eq!((status.calls, status.failed, status.last_fault), (3, 3, Some(fault)));
        // It is not even called any more.
        assert!(!gate(&kernels, 0).0);
        assert_eq!(kernels.status()[0].calls, 3);
    }
}

#[test]
fn numbers_that_look_right_are_compared_before_they_are_used() {
    let kernels = kernels(PLAUSIBLE);
    let error = shadow_check(&kernels, ModelShapes::default()).unwrap_err();
    assert!(error.to_string().contains("swiglu differs from the reference"), "{error}");
    // And, of those that only behave while they are checked, now and then afterwards: the first call is one of those.
    let kernels = self::kernels(PLAUSIBLE);
    assert_eq!(gate(&kernels, 0), (false, vec![1.0, -2.0, 0.5, 3.0]));
    assert!(matches!(kernels.status()[0].last_fault, Some(Fault::Wrong { .. })));
}

#[test]
fn operations_that_a_pack_does_not_have_stay_native() {
    let kernels = kernels(PLAUSIBLE);
    assert!(!kernels.has(RowOperation::RmsNorm) && !kernels.has(RowOperation::Rope));
    let mut out = [0.0];
    assert!(!kernels.rms_norm(0, &[1.0], &[1.0], 0.0, &mut out));
    // Nor does a thread that it was not made for get anything.
    assert!(!gate(&kernels, 7).0);
}

#[test]
fn a_module_that_is_no_kernel_is_refused_by_its_path() {
    let refusal = |bytes: &[u8]| {
        let pack = TestPack::with_module(bytes);
        pack.sign();
        load(&pack).unwrap_err().to_string()
    };
    assert!(refusal(b"not a module").starts_with("module gated/gate.wasm is no module"));
    let imports = wat::parse_str(r#"(module (import "env" "host" (func)))"#).unwrap();
    assert_eq!(refusal(&imports), "module gated/gate.wasm imports env.host; kernels get nothing from outside");
}

#[test]
fn only_allowed_kernels_are_loaded() {
    let pack = pack(PLAUSIBLE);
    let opened = Pack::open(pack.folder.path(), &pack.trust()).unwrap();
    let sandbox = Sandbox::new().unwrap();
    let load = |ids: &[String]| LoadedPack::load(&sandbox, &opened, &Version::new(0, 1, 0), Some(ids));
    assert_eq!(load(&[]).unwrap().kernels.len(), 0);
    assert_eq!(load(&["gate".to_owned()]).unwrap().kernels.len(), 1);
    assert!(matches!(load(&["other".to_owned()]), Err(LoadError::NoSuchKernel(id)) if id == "other"));
}

#[test]
fn a_pack_for_another_version_is_not_compiled() {
    let pack = pack("(i32.const 0)").change(|manifest| manifest["min_runtime_version"] = json!("9.0.0"));
    // It could not be: there is no module.
    fs::write(pack.path("gated/gate.wasm"), fs::read(pack.path("gated/gate.wasm")).unwrap()).unwrap();
    assert!(matches!(load(&pack), Err(LoadError::Gate(_))));
}
