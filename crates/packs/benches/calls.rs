//! `cargo bench -p ruvllm-packs`: what a call of a kernel costs that does nothing, from the host's side, on one thread.

use std::time::{Duration, Instant};

use ruvllm_packs::{Call, Instance, InstanceLimits, Number, Sandbox};

const NOTHING: &str = r#"(module
    (memory (export "memory") 1)
    (global (export "__heap_base") i32 (i32.const 1024))
    (func (export "kernel_info") (param $to i32) (result i32)
        (i64.store (local.get $to) (i64.const 0x1000000001)) (i64.store offset=8 (local.get $to) (i64.const 0)) (i32.const 0))
    (func (export "kernel_init") (param i32 i32) (result i32) (i32.const 0))
    (func (export "kernel_cleanup") (result i32) (i32.const 0))
    (func (export "kernel_forward") (param i32) (result i32) (i32.const 0)))"#;

const CALLS: usize = 200_000;

fn main() {
    let module = wat::parse_str(NOTHING).expect("a module");
    let sandbox = Sandbox::new().expect("a sandbox");
    let module = sandbox.compile(&module, &["kernel_forward"], &[], InstanceLimits::default()).expect("it compiles");
    let mut instance = Instance::new(&module);
    let mut call = || {
        let nothing = Call { entry: 0, params: &[], a: None, b: &[], out: &mut [], out_type: Number::F32 };
        instance.forward(nothing).expect("it does nothing");
    };
    (0..CALLS / 10).for_each(|_| call());
    // Reading the clock takes about as long as a call.
    let clock = spread(|| ());
    let calls = spread(call);
    let without_clock = |time: Duration| time.saturating_sub(clock.0).as_nanos();
    println!("an empty call: median {} ns, p99 {} ns", without_clock(calls.0), without_clock(calls.1));
}

/// Returns median and 99th percentile.
fn spread(mut job: impl FnMut()) -> (Duration, Duration) {
    let time = |()| {
        let began = Instant::now();
        job();
        began.elapsed()
    };
    let mut times: Vec<Duration> = std::iter::repeat_n((), CALLS).map(time).collect();
    times.sort_unstable();
    (times[CALLS / 2], times[CALLS / 100 * 99])
}
