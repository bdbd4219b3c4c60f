//! The included pack on a small interpreter, without SIMD, as a small device would run it. A program of its own, since it counts what
//! is allocated.

use std::alloc::System;
use std::path::Path;

use ruvllm_kernels::reference;
use ruvllm_packs::build;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use wasmi::{CompilationMode, Config, Engine, Instance, Linker, Memory, Module, Store};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// All of the interpreter's, with the kernels' memory.
const HEAP_BYTES_MAX: usize = 256 << 10;

struct Device {
    store: Store<()>,
    instance: Instance,
    memory: Memory,
    heap: usize,
}

impl Device {
    fn new(module: &[u8]) -> Self {
        let mut config = Config::default();
        // Only what is called is translated.
        config.compilation_mode(CompilationMode::Lazy);
        let engine = Engine::new(&config);
        let module = Module::new(&engine, module).expect("a module without SIMD");
        let mut store = Store::new(&engine, ());
        let instance = Linker::new(&engine).instantiate_and_start(&mut store, &module).expect("it needs nothing");
        let memory = instance.get_memory(&store, "memory").expect("a memory");
        let heap = instance.get_global(&store, "__heap_base").expect("a global").get(&store).i32().expect("an address");
        Self { store, instance, memory, heap: heap as usize }
    }

    /// Calls a kernel on floats, as the host of the engine does.
    fn call(&mut self, kernel: &str, params: &[u32], a: &[f32], b: &[f32], out: &mut [f32]) {
        let mut end = (self.heap + 40).next_multiple_of(16);
        let mut descriptor = Vec::new();
        let mut place = |device: &mut Self, bytes: &[u8]| {
            device.memory.write(&mut device.store, end, bytes).expect("it fits");
            let span = [end as u32, bytes.len() as u32];
            end = (end + bytes.len()).next_multiple_of(16);
            span
        };
        let numbers: Vec<u8> = params.iter().flat_map(|param| param.to_le_bytes()).collect();
        descriptor.extend(place(self, bytemuck::cast_slice(a)));
        descriptor.extend(place(self, bytemuck::cast_slice(b)));
        let result = place(self, bytemuck::cast_slice(out));
        descriptor.extend(result);
        descriptor.extend([0, 0]);
        descriptor.extend(place(self, &numbers));
        let bytes: Vec<u8> = descriptor.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.memory.write(&mut self.store, self.heap, &bytes).expect("it fits");
        let kernel = self.instance.get_typed_func::<i32, i32>(&self.store, kernel).expect("a kernel");
        assert_eq!(kernel.call(&mut self.store, self.heap as i32).expect("it returns"), 0);
        self.memory.read(&self.store, result[0] as usize, bytemuck::cast_slice_mut(out)).expect("it is there");
    }
}

#[test]
fn the_included_pack_runs_in_a_quarter_of_a_megabyte() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packs/standard");
    build(&source, &folder.path().join("standard")).unwrap();
    // A device has it in read-only memory.
    let module = std::fs::read(folder.path().join("standard/plain/standard.wasm")).unwrap();
    let numbers = |seed: usize| (0..576).map(|i| ((i * 31 + seed) % 97) as f32 / 24.0 - 2.0).collect::<Vec<f32>>();
    let (x, weight, mut out) = (numbers(1), numbers(2), vec![0f32; 576]);
    let rotations: Vec<f32> = (0..32).flat_map(|i| [(i as f32).cos(), (i as f32).sin()]).collect();

    let region = Region::new(ALLOCATOR);
    let mut device = Device::new(&module);
    device.call("rms_norm_f32", &[1e-5f32.to_bits()], &x, &weight, &mut out);
    let norm = out.clone();
    device.call("swiglu_f32", &[], &x, &weight, &mut out);
    let gated = out.clone();
    device.call("rope_f32", &[64, 32, 0], &x, &rotations, &mut out);
    let stats = region.change();
    let live = stats.bytes_allocated - stats.bytes_deallocated;
    assert!(live <= HEAP_BYTES_MAX, "{live} bytes are in use");

    let assert_close = |got: &[f32], expected: &[f32]| {
        assert!(
            got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() <= 1e-4 * (1.0 + expected.abs()))
        );
    };
    assert_close(&norm, &reference::rms_norm(&x, &weight, 1e-5));
    assert_close(&gated, &reference::gated(ruvllm_kernels::ops::Activation::Silu, &weight, &x));
    let (cosine, sine) = (rotations[2], rotations[3]);
    assert_close(&[out[1], out[33]], &[x[1] * cosine - x[33] * sine, x[1] * sine + x[33] * cosine]);
}
