//! The kernels of the included pack, for `wasm32-unknown-unknown`.
//!
//! They are plain code on arrays of numbers, which the compiler makes vectors of where the module is built with `simd128`. All
//! sums are in the same order with and without, so both builds give the same bits. Loops are unrolled: a runtime that stops
//! endless loops looks at its clock at the end of each turn.

#![no_std]

mod exp;
mod gated;
mod half;
mod kv;
mod lanes;
mod lora;
mod memory;
mod norm;
mod rope;

use memory::Descriptor;

#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

/// Results of functions.
mod code {
    pub const OK: i32 = 0;
    pub const INVALID_INPUT: i32 = 1;
    pub const INVALID_OUTPUT: i32 = 2;
    pub const INVALID_PARAMETERS: i32 = 3;
}

/// Numbers that go through a loop together.
const LANES: usize = 16;

/// Defines entry points: functions of a descriptor.
macro_rules! entries {
    ($($name:ident = $kernel:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(descriptor: u32) -> i32 {
            let kernel: fn(&mut Descriptor) -> Result<(), i32> = $kernel;
            kernel(&mut Descriptor::at(descriptor)).err().unwrap_or(code::OK)
        }
    )*};
}

entries! {
    rms_norm_f32 = norm::f32;
    rms_norm_f16 = norm::f16;
    rope_f32 = rope::f32;
    rope_f16 = rope::f16;
    swiglu_f32 = gated::f32::<gated::Silu>;
    swiglu_f16 = gated::f16::<gated::Silu>;
    geglu_f32 = gated::f32::<gated::Gelu>;
    geglu_f16 = gated::f16::<gated::Gelu>;
    kv_quantize_q8 = kv::quantize_q8;
    kv_dequantize_q8 = kv::dequantize_q8;
    kv_quantize_q4 = kv::quantize_q4;
    kv_dequantize_q4 = kv::dequantize_q4;
    lora_apply_f32 = lora::f32;
    lora_apply_f16 = lora::f16;
}

#[unsafe(no_mangle)]
pub extern "C" fn kernel_info(to: u32) -> i32 {
    // Version of the interface, alignment, scratch memory.
    memory::write(to, [1, 16, 0, 0]);
    code::OK
}

#[unsafe(no_mangle)]
pub extern "C" fn kernel_init(_params: u32, _len: u32) -> i32 {
    code::OK
}

#[unsafe(no_mangle)]
pub extern "C" fn kernel_cleanup() -> i32 {
    code::OK
}
