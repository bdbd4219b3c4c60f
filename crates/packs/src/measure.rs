//! What a call of a kernel takes, beside the native one: as a forward pass calls it, with copies and checks.

use std::time::{Duration, Instant};

use ruvllm_kernels::ops::RowKernels;
use ruvllm_kernels::ops::slices::{gated, rms_norm};

use crate::row_kernels::{PackKernels, rotate_native};
use crate::shadow::{numbers, rotations, unit};
use crate::shapes::Operation;

/// How long a round of calls of one kernel takes at least, if it has more than one.
const ROUND_TIME: Duration = Duration::from_micros(100);
const CALLS_MAX: u128 = 10_000;

/// Times of one call: the fastest of all rounds, since whatever else runs only makes calls slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub pack: Duration,
    pub native: Duration,
}

/// Measures the kernel of an operation and the native one, in turns. `None` if the pack has none, or it fails.
pub fn measure(kernels: &PackKernels, operation: Operation, rounds: usize) -> Option<Measured> {
    if !kernels.has(operation.row_operation()) {
        return None;
    }
    let native_set = kernels.native();
    match operation {
        Operation::RmsNorm { len } => {
            const EPSILON: f32 = 1e-5;
            let (x, weight) = (numbers(len, 1, unit), numbers(len, 7_000, unit));
            let (mut out, mut native_out) = (vec![0.0; len], vec![0.0; len]);
            in_turns(
                rounds,
                || kernels.rms_norm(0, &x, &weight, EPSILON, &mut out),
                || rms_norm(native_set, &x, &weight, EPSILON, &mut native_out),
            )
        }
        Operation::Rope { heads, head_dim, pairs, style } => {
            let rotations = rotations(pairs);
            let mut rows = [numbers(heads * head_dim, 2, unit), numbers(heads * head_dim, 2, unit)];
            let [ours, native] = &mut rows;
            in_turns(
                rounds,
                || kernels.rotate(0, ours, head_dim, &rotations, style),
                || rotate_native(native, head_dim, &rotations, style),
            )
        }
        Operation::Gated { activation, len } => {
            let (gates, up) = (numbers(len, 3, unit), numbers(len, 9_000, unit));
            let mut rows = [gates.clone(), gates.clone()];
            let [ours, native] = &mut rows;
            // Filled again for each call, of either: gates of gates become numbers that are so small that they are slow.
            in_turns(
                rounds,
                || {
                    ours.copy_from_slice(&gates);
                    kernels.gated(0, activation, &up, ours)
                },
                || {
                    native.copy_from_slice(&gates);
                    gated(native_set, activation, &up, native);
                },
            )
        }
    }
}

/// `pack` returns whether it computed.
fn in_turns(rounds: usize, mut pack: impl FnMut() -> bool, mut native: impl FnMut()) -> Option<Measured> {
    let mut works = true;
    let mut pack = || works &= pack();
    let calls = [calls_of_round(&mut pack), calls_of_round(&mut native)];
    let mut fastest = [Duration::MAX; 2];
    for _ in 0..rounds.max(1) {
        fastest[0] = fastest[0].min(time_of(calls[0], &mut pack));
        fastest[1] = fastest[1].min(time_of(calls[1], &mut native));
    }
    let [pack, native] = fastest;
    works.then_some(Measured { pack, native })
}

fn calls_of_round(call: &mut impl FnMut()) -> u32 {
    // The first is not counted: it makes what is made once.
    call();
    let time = time_of(1, call).as_nanos().max(1);
    (ROUND_TIME.as_nanos() / time).clamp(1, CALLS_MAX) as u32
}

fn time_of(calls: u32, call: &mut impl FnMut()) -> Duration {
    let began = Instant::now();
    (0..calls).for_each(|_| call());
    began.elapsed() / calls
}
