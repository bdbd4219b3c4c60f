//! Modules that take more than they may, or say of themselves what cannot be.

use std::time::{Duration, Instant};

use ruvllm_packs::{Call, Fault, Instance, InstanceLimits, Module, ModuleError, Number, Sandbox};

use crate::sandbox::module;

/// All that a manifest can ask for.
const MOST: InstanceLimits = InstanceLimits { memory_pages: 256, table_elements: 1024, budget_ms: 5 };
/// Generous, for machines under load: what matters is that a call ends, and not after what it asked for.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

fn compile(bytes: &[u8]) -> Result<Module, ModuleError> {
    Sandbox::new().unwrap().compile(bytes, &["kernel_forward"], &[], MOST)
}

/// Calls a module whose function is this on two numbers.
fn outcome(others: &str, body: &str) -> Result<Vec<f32>, Fault> {
    let text = format!(r#"{others} (func (export "kernel_forward") (param $d i32) (result i32) {body})"#);
    let mut out = [0; 8];
    let a = [1f32, 2.0].map(f32::to_le_bytes).concat();
    let mut instance = Instance::new(&compile(&module(&text)).unwrap());
    instance.forward(Call { entry: 0, params: &[], a: Some(&a), b: &[], out: &mut out, out_type: Number::F32 })?;
    Ok(out.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect())
}

/// Copies its input.
const COPY: &str =
    "(memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d)) (i32.const 8)) (i32.const 0)";

#[test]
fn a_table_that_grows_without_end_stays_within_its_limit() {
    let table = "(table $t 1 funcref)";
    let greedy = format!(
        "(if (i32.ne (table.grow $t (ref.null func) (i32.const 100000000)) (i32.const -1)) (then (unreachable)))
         (loop $more (br_if $more (i32.ne (table.grow $t (ref.null func) (i32.const 1)) (i32.const -1))))
         (if (i32.gt_u (table.size $t) (i32.const 1024)) (then (unreachable))) {COPY}"
    );
    assert_eq!(outcome(table, &greedy), Ok(vec![1.0, 2.0]));
}

#[test]
fn a_memory_that_grows_without_end_stays_within_its_limit() {
    let greedy = format!(
        "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
         (if (i32.gt_u (memory.size) (i32.const 256)) (then (unreachable))) {COPY}"
    );
    assert_eq!(outcome("", &greedy), Ok(vec![1.0, 2.0]));
}

#[test]
fn gigabytes_are_not_copied_one_part_after_the_other() {
    // Without a loop, and without a call: nothing at which the clock would be looked at.
    for all in [
        "(memory.copy (i32.const 0) (i32.const 65536) (i32.const 16000000))",
        "(memory.fill (i32.const 65536) (i32.const 7) (i32.const 16000000))",
    ] {
        let text = format!(
            r#"(func (export "kernel_forward") (param i32) (result i32)
                (drop (memory.grow (i32.const 255))) {} (i32.const 0))"#,
            all.repeat(4_000)
        );
        assert!(matches!(compile(&module(&text)), Err(ModuleError::TooMany { got: 4_000, max: 4, .. })));
    }
}

#[test]
fn gigabytes_are_not_copied_turn_after_turn() {
    let all = "(memory.copy (i32.const 0) (i32.const 65536) (i32.const 16000000))";
    let copies =
        format!("(drop (memory.grow (i32.const 255))) (loop $more {} (br $more)) (i32.const 0)", all.repeat(4));
    let began = Instant::now();
    assert_eq!(outcome("", &copies), Err(Fault::Deadline { budget_ms: 5 }));
    assert!(began.elapsed() < ENDS_WITHIN, "{:?}", began.elapsed());
}

#[test]
fn what_is_no_number_is_not_taken_over() {
    let nan = "(f32.store (i32.load offset=16 (local.get $d)) (f32.const 1))
        (f32.store offset=4 (i32.load offset=16 (local.get $d)) (f32.const nan)) (i32.const 0)";
    assert_eq!(outcome("", nan), Err(Fault::NotFinite { index: 1 }));
}

#[test]
fn an_output_of_another_size_is_not_taken_over() {
    // One number of two; and many more, of which those behind the output go nowhere.
    let few = "(f32.store (i32.load offset=16 (local.get $d)) (f32.const 1)) (i32.const 0)";
    assert_eq!(outcome("", few), Err(Fault::NotFinite { index: 1 }));
    let many = "(memory.fill (i32.load offset=16 (local.get $d)) (i32.const 0) (i32.const 1000)) (i32.const 0)";
    assert_eq!(outcome("", many), Ok(vec![0.0, 0.0]));
}

#[test]
fn a_cleanup_that_never_ends_is_stopped() {
    let text = format!(
        r#"(module (memory (export "memory") 1) (global (export "__heap_base") i32 (i32.const 1024))
        (func (export "kernel_info") (param i32) (result i32)
            (i64.store (local.get 0) (i64.const 0x1000000001)) (i64.store offset=8 (local.get 0) (i64.const 0)) (i32.const 0))
        (func (export "kernel_init") (param i32 i32) (result i32) (i32.const 0))
        (func (export "kernel_cleanup") (result i32) (loop $again (br $again)) (i32.const 0))
        (func (export "kernel_forward") (param $d i32) (result i32) {COPY}))"#
    );
    let began = Instant::now();
    let module = compile(&wat::parse_str(text).unwrap()).unwrap();
    let mut out = [0; 8];
    let call = Call { entry: 0, params: &[], a: Some(&[0; 8]), b: &[], out: &mut out, out_type: Number::F32 };
    let mut instance = Instance::new(&module);
    assert_eq!(instance.forward(call), Ok(()));
    drop(instance);
    assert!(began.elapsed() < ENDS_WITHIN, "{:?}", began.elapsed());
}

#[test]
fn what_a_module_says_of_itself_must_be_possible() {
    let says = |abi: u32, alignment: u32, scratch: u32| {
        let text = format!(
            r#"(module (memory (export "memory") 1) (global (export "__heap_base") i32 (i32.const 1024))
            (func (export "kernel_info") (param $to i32) (result i32) (i32.store (local.get $to) (i32.const {abi}))
                (i32.store offset=4 (local.get $to) (i32.const {alignment}))
                (i32.store offset=8 (local.get $to) (i32.const {scratch})) (i32.const 0))
            (func (export "kernel_init") (param i32 i32) (result i32) (i32.const 0))
            (func (export "kernel_cleanup") (result i32) (i32.const 0))
            (func (export "kernel_forward") (param i32) (result i32) (i32.const 0)))"#
        );
        compile(&wat::parse_str(text).unwrap()).map(drop)
    };
    assert_eq!(says(1, 64, 1 << 20), Ok(()));
    assert_eq!(says(2, 16, 0), Err(ModuleError::Abi { got: 2 }));
    for alignment in [0, 3, 128, u32::MAX] {
        assert_eq!(says(1, alignment, 0), Err(ModuleError::Alignment(alignment)));
    }
    for scratch in [1 << 25, u32::MAX] {
        assert!(matches!(says(1, 16, scratch), Err(ModuleError::Start(Fault::MemoryLimit { .. }))), "{scratch}");
    }
}
