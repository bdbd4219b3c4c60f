//! Modules that compute, and modules that try everything else.

use std::time::{Duration, Instant};

use ruvllm_packs::{Call, Fault, Instance, InstanceLimits, KernelCode, Module, ModuleError, Number, Sandbox};

/// A module around some functions of its own.
pub fn module(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (memory (export "memory") 1)
            (global (export "__heap_base") i32 (i32.const 1024))
            (func (export "kernel_info") (param $to i32) (result i32)
                (i32.store (local.get $to) (i32.const 1))
                (i32.store offset=4 (local.get $to) (i32.const 16))
                (i32.store offset=8 (local.get $to) (i32.const 0))
                (i32.const 0))
            (func (export "kernel_init") (param i32 i32) (result i32) (i32.const 0))
            (func (export "kernel_cleanup") (result i32) (i32.const 0))
            {body})"#
    );
    wat::parse_str(&text).unwrap()
}

/// `out = a`, number by number.
const COPY: &str = r#"(func (export "kernel_forward") (param $d i32) (result i32)
    (memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d)) (i32.load offset=4 (local.get $d)))
    (i32.const 0))"#;

fn forward(body: &str) -> String {
    format!(r#"(func (export "kernel_forward") (param $d i32) (result i32) {body})"#)
}

fn compile(bytes: &[u8]) -> Result<Module, ModuleError> {
    Sandbox::new().unwrap().compile(bytes, &["kernel_forward"], &[], InstanceLimits::default())
}

/// Calls a module on some numbers.
fn call(instance: &mut Instance, a: &[f32]) -> Result<Vec<f32>, Fault> {
    let bytes: Vec<u8> = a.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut out = vec![0; bytes.len()];
    instance.forward(Call { entry: 0, params: &[], a: Some(&bytes), b: &[], out: &mut out, out_type: Number::F32 })?;
    Ok(out.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect())
}

/// What a module whose function is this comes to.
fn outcome(body: &str) -> Result<Vec<f32>, Fault> {
    call(&mut Instance::new(&compile(&module(&forward(body))).unwrap()), &[1.0, 2.0])
}

fn refusal(bytes: &[u8]) -> ModuleError {
    compile(bytes).unwrap_err()
}

#[test]
fn tensors_go_in_and_come_out() {
    let mut instance = Instance::new(&compile(&module(COPY)).unwrap());
    assert_eq!(call(&mut instance, &[1.0, -2.5, 3.0]), Ok(vec![1.0, -2.5, 3.0]));
    // More than the memory held so far, which grows up to its limit.
    let many = vec![0.5; 40_000];
    assert_eq!(call(&mut instance, &many), Ok(many));
    assert!(matches!(call(&mut instance, &[0.5; 200_000]), Err(Fault::MemoryLimit { .. })));
    assert_eq!(call(&mut instance, &[7.0]), Ok(vec![7.0]));
}

#[test]
fn an_endless_loop_costs_its_budget_once() {
    let module = compile(&module(&forward("(loop $again (br $again)) (i32.const 0)"))).unwrap();
    let mut instance = Instance::new(&module);
    let began = Instant::now();
    assert_eq!(call(&mut instance, &[1.0]), Err(Fault::Deadline { budget_ms: 5 }));
    // Generous, for machines under load; what matters is that it ends.
    assert!(began.elapsed() < Duration::from_secs(5));
    // After the clock has slept, too.
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(call(&mut instance, &[1.0]), Err(Fault::Deadline { budget_ms: 5 }));
}

#[test]
fn traps_are_errors_that_say_what_happened() {
    assert_eq!(outcome("(unreachable)"), Err(Fault::Unreachable));
    assert_eq!(outcome("(i32.div_u (i32.const 1) (i32.const 0))"), Err(Fault::DivisionByZero));
    assert_eq!(outcome("(i32.div_s (i32.const 0x80000000) (i32.const -1))"), Err(Fault::IntegerOverflow));
    assert_eq!(outcome("(i32.trunc_f32_s (f32.const nan))"), Err(Fault::BadConversion));
    assert_eq!(outcome("(i32.const 4)"), Err(Fault::Code(KernelCode::OutOfMemory)));
    assert_eq!(outcome("(i32.const -7)"), Err(Fault::Code(KernelCode::Unknown(-7))));
    let Err(Fault::MemoryOutOfBounds { detail }) = outcome("(i32.load (i32.const 0x7ffffff0))") else { panic!() };
    assert!(detail.contains("0x7ffffff0") && detail.contains("0x10000"), "{detail}");
}

#[test]
fn a_stack_that_overflows_is_an_error() {
    let recursive = r#"(func $down (param i32) (result i32) (i32.add (call $down (local.get 0)) (i32.const 1)))
        (func (export "kernel_forward") (param i32) (result i32) (call $down (local.get 0)))"#;
    let mut instance = Instance::new(&compile(&module(recursive)).unwrap());
    assert_eq!(call(&mut instance, &[1.0]), Err(Fault::StackOverflow));
}

#[test]
fn bad_indirect_calls_are_errors() {
    let through = |index: &str| {
        let text = format!(
            r#"(table 4 funcref) (elem (i32.const 0) $other) (type $expected (func (result i32)))
            (func $other (param f32)) {}"#,
            forward(&format!("(call_indirect (type $expected) (i32.const {index}))"))
        );
        call(&mut Instance::new(&compile(&module(&text)).unwrap()), &[1.0])
    };
    assert_eq!(through("0"), Err(Fault::BadIndirectCall));
    assert_eq!(through("2"), Err(Fault::BadIndirectCall));
    assert_eq!(through("9"), Err(Fault::TableOutOfBounds));
}

#[test]
fn outputs_are_checked() {
    assert_eq!(outcome("(i32.const 0)"), Err(Fault::NotFinite { index: 0 }), "nothing was written");
    let first_only = "(f32.store (i32.load offset=16 (local.get $d)) (f32.const 1)) (i32.const 0)";
    assert_eq!(outcome(first_only), Err(Fault::NotFinite { index: 1 }));
    let infinite = "(f32.store (i32.load offset=16 (local.get $d)) (f32.const inf))
        (f32.store offset=4 (i32.load offset=16 (local.get $d)) (f32.const 1)) (i32.const 0)";
    assert_eq!(outcome(infinite), Err(Fault::NotFinite { index: 0 }));
}

#[test]
fn a_descriptor_that_a_kernel_changes_moves_nothing() {
    // It claims that its output is elsewhere, where it has put numbers; the host looks where it said.
    let moved = "(i32.store offset=16 (local.get $d) (i32.const 0)) (i32.store offset=20 (local.get $d) (i32.const -1))
        (i32.const 0)";
    assert_eq!(outcome(moved), Err(Fault::NotFinite { index: 0 }));
}

#[test]
fn memory_and_tables_have_limits() {
    // It asks for gigabytes and gets none; what it has stays usable.
    let greedy = format!(
        "{} (i32.const 0)",
        "(if (i32.ne (memory.grow (i32.const 60000)) (i32.const -1)) (then (unreachable)))
         (memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d)) (i32.load offset=4 (local.get $d)))"
    );
    assert_eq!(outcome(&greedy), Ok(vec![1.0, 2.0]));
    let copy = "(memory.copy (i32.const 0) (i32.const 1) (i32.const 0x7fffffff)) (i32.const 0)";
    assert!(matches!(outcome(copy), Err(Fault::MemoryOutOfBounds { .. })));
    let fill = "(memory.fill (i32.const 0) (i32.const 1) (i32.const -1)) (i32.const 0)";
    assert!(matches!(outcome(fill), Err(Fault::MemoryOutOfBounds { .. })));
    let large = wat::parse_str(r#"(module (memory (export "memory") 60000))"#).unwrap();
    assert_eq!(refusal(&large), ModuleError::TooMany { what: "pages of memory", got: 60000, max: 16 });
    let table = module(&format!("(table 1000000 funcref) {COPY}"));
    assert_eq!(refusal(&table), ModuleError::TooMany { what: "table elements", got: 1_000_000, max: 64 });
}

#[test]
fn what_kernels_do_not_need_is_refused() {
    assert_eq!(refusal(&module(&format!("(start $go) (func $go) {COPY}"))), ModuleError::StartFunction);
    let imports = wat::parse_str(r#"(module (import "wasi_snapshot_preview1" "fd_write" (func)))"#).unwrap();
    let expected = ModuleError::Import { module: "wasi_snapshot_preview1".into(), name: "fd_write".into() };
    assert_eq!(refusal(&imports), expected);
    let shared = wat::parse_str(r#"(module (memory (export "memory") 1 1 shared))"#).unwrap();
    assert_eq!(refusal(&shared), ModuleError::SharedMemory);
    assert_eq!(refusal(&wat::parse_str("(component)").unwrap()), ModuleError::Component);
    assert_eq!(refusal(&module("")), ModuleError::NoExport("kernel_forward".into()));
    let other = module(r#"(func (export "kernel_forward") (param i64) (result i32) (i32.const 0))"#);
    assert!(matches!(refusal(&other), ModuleError::ExportType { .. }));
    assert!(matches!(refusal(b"\x7fELF"), ModuleError::Invalid(_)));
    assert!(matches!(refusal(&[0; (1 << 20) + 1]), ModuleError::TooLarge { .. }));
    for unsupported in [
        "(memory $second 1)",
        "(func (result i64) (memory.atomic.notify (i32.const 0) (i32.const 0)) (drop) (i64.const 0))",
        "(func (param v128 v128 v128) (result v128) (f32x4.relaxed_madd (local.get 0) (local.get 1) (local.get 2)))",
        "(func $f (return_call $f))",
    ] {
        let bytes = module(&format!("{unsupported} {COPY}"));
        assert!(matches!(refusal(&bytes), ModuleError::Invalid(_)), "{unsupported}");
    }
}

#[test]
fn a_function_that_would_take_long_to_compile_is_refused() {
    let long = "(drop (i32.const 1000000))".repeat(20_000);
    assert!(matches!(refusal(&module(&forward(&format!("{long} (i32.const 0)")))), ModuleError::TooMany { .. }));
}

#[test]
fn a_module_that_fails_at_once_is_refused() {
    let text = r#"(module (memory (export "memory") 1) (global (export "__heap_base") i32 (i32.const INFO))
        (func (export "kernel_info") (param i32) (result i32) BODY) (func (export "kernel_init") (param i32 i32) (result i32) (i32.const 3))
        (func (export "kernel_cleanup") (result i32) (i32.const 0)) (func (export "kernel_forward") (param i32) (result i32) (i32.const 0)))"#;
    let made = |heap: &str, body: &str| wat::parse_str(text.replace("INFO", heap).replace("BODY", body)).unwrap();
    let failed = |bytes: &[u8]| match refusal(bytes) {
        ModuleError::Start(fault) => fault,
        other => panic!("{other}"),
    };
    assert_eq!(failed(&made("1024", "(loop $l (br $l)) (i32.const 0)")), Fault::Deadline { budget_ms: 5 });
    assert_eq!(failed(&made("1024", "(i32.const 0)")), Fault::Code(KernelCode::InvalidParameters));
    assert!(matches!(failed(&made("-16", "(i32.const 0)")), Fault::MemoryLimit { .. }));
}

#[test]
fn what_one_call_leaves_behind_another_instance_does_not_see() {
    // It counts its calls in its memory, and fails at the third.
    let counting = forward(
        "(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
        (if (i32.gt_u (i32.load (i32.const 0)) (i32.const 2)) (then (unreachable)))
        (memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d)) (i32.load offset=4 (local.get $d)))
        (i32.const 0)",
    );
    let module = compile(&module(&counting)).unwrap();
    let (mut one, mut other) = (Instance::new(&module), Instance::new(&module));
    assert!(call(&mut one, &[1.0]).is_ok() && call(&mut one, &[1.0]).is_ok());
    assert!(call(&mut other, &[1.0]).is_ok());
    assert_eq!(call(&mut one, &[1.0]), Err(Fault::Unreachable));
    // What failed was dropped: there is a new one, with memory of its own.
    assert!(call(&mut one, &[1.0]).is_ok() && call(&mut one, &[1.0]).is_ok());
}

#[test]
fn ten_thousand_instances_take_turns_in_the_pool() {
    let module = compile(&module(COPY)).unwrap();
    for i in 0..10_000 {
        assert_eq!(call(&mut Instance::new(&module), &[i as f32]), Ok(vec![i as f32]));
    }
    // Held at the same time, they are refused when the pool is empty, and the rest go on.
    let mut held: Vec<Instance> = (0..2_000).map(|_| Instance::new(&module)).collect();
    let outcomes: Vec<_> = held.iter_mut().map(|instance| call(instance, &[1.0])).collect();
    let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!((64..2_000).contains(&made));
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(Fault::Instance(_)))));
    drop(held.split_off(1));
    assert!(call(&mut Instance::new(&module), &[1.0]).is_ok());
}

#[test]
fn instances_on_many_threads_do_not_disturb_each_other() {
    let sandbox = Sandbox::new().unwrap();
    let compile = |bytes: &[u8]| sandbox.compile(bytes, &["kernel_forward"], &[], InstanceLimits::default()).unwrap();
    let endless = compile(&module(&forward("(loop $again (br $again)) (i32.const 0)")));
    let module = compile(&module(COPY));
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(call(&mut Instance::new(&endless), &[1.0]).is_err()));
        for thread in 0..3 {
            let module = &module;
            scope.spawn(move || {
                let mut instance = Instance::new(module);
                for i in 0..1_000 {
                    let x = (thread * 1_000 + i) as f32;
                    assert_eq!(call(&mut instance, &[x]), Ok(vec![x]));
                }
            });
        }
    });
}
