// A kernel pack in AssemblyScript: RMSNorm of floats, `out = x * weight / sqrt(mean(x^2) + epsilon)`.

// From here on the memory is the host's. The compiler knows it, and does not export it by itself.
export { __heap_base };

// Results of functions.
const OK: i32 = 0;
const INVALID_INPUT: i32 = 1;
const INVALID_OUTPUT: i32 = 2;
const INVALID_PARAMETERS: i32 = 3;

// What the host says of a call: offset and size in bytes of tensors in the memory of this module.
@unmanaged
class Descriptor {
  a: usize;
  aSize: u32;
  b: usize;
  bSize: u32;
  out: usize;
  outSize: u32;
  scratch: usize;
  scratchSize: u32;
  params: usize;
  paramsSize: u32;
}

export function kernel_info(to: usize): i32 {
  store<u32>(to, 1); // the version of the interface
  store<u32>(to, 16, 4); // the alignment of tensors
  store<u32>(to, 0, 8); // bytes of scratch memory
  store<u32>(to, 0, 12);
  return OK;
}

export function kernel_init(params: usize, len: u32): i32 {
  return OK;
}

export function kernel_cleanup(): i32 {
  return OK;
}

export function kernel_forward(d: Descriptor): i32 {
  if (d.paramsSize < 4 || !(load<f32>(d.params) >= 0)) return INVALID_PARAMETERS;
  if (d.bSize == 0 || d.aSize % d.bSize != 0) return INVALID_INPUT;
  if (d.outSize != d.aSize) return INVALID_OUTPUT;
  const epsilon = load<f32>(d.params);
  for (let row: u32 = 0; row < d.aSize; row += d.bSize) {
    normalize(d.a + row, d.b, d.out + row, d.bSize, epsilon);
  }
  return OK;
}

// Vectors are written out: this compiler makes none by itself. Four sums go on side by side.
function normalize(x: usize, weight: usize, out: usize, size: u32, epsilon: f32): void {
  const vectors = size & ~63;
  let s0 = f32x4.splat(0), s1 = s0, s2 = s0, s3 = s0;
  let i: u32 = 0;
  for (; i < vectors; i += 64) {
    const a = v128.load(x + i), b = v128.load(x + i, 16), c = v128.load(x + i, 32), d = v128.load(x + i, 48);
    s0 = f32x4.add(s0, f32x4.mul(a, a));
    s1 = f32x4.add(s1, f32x4.mul(b, b));
    s2 = f32x4.add(s2, f32x4.mul(c, c));
    s3 = f32x4.add(s3, f32x4.mul(d, d));
  }
  const s = f32x4.add(f32x4.add(s0, s1), f32x4.add(s2, s3));
  let sum = f32x4.extract_lane(s, 0) + f32x4.extract_lane(s, 1) + f32x4.extract_lane(s, 2) + f32x4.extract_lane(s, 3);
  for (; i < size; i += 4) {
    const number = load<f32>(x + i);
    sum += number * number;
  }
  const factor = <f32>1 / sqrt<f32>(sum / <f32>(size / 4) + epsilon);
  const factors = f32x4.splat(factor);
  for (i = 0; i < vectors; i += 64) {
    for (let part: u32 = 0; part < 64; part += 16) {
      const numbers = f32x4.mul(f32x4.mul(v128.load(x + i + part), factors), v128.load(weight + i + part));
      v128.store(out + i + part, numbers);
    }
  }
  for (; i < size; i += 4) {
    store<f32>(out + i, load<f32>(x + i) * factor * load<f32>(weight + i));
  }
}
