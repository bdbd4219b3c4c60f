//! Matmul of many tokens on AMX tiles: the integer sums of 16 rows times 16 tokens in one instruction per group.
//!
//! Weights are first unpacked to signed bytes, once for all tokens. Scales stay outside of the tile unit, in the same
//! order of float operations as in `matmul`, so a token gets the same bits whichever kernel takes it.

use std::arch::asm;
use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_storeu_si512, _mm512_sub_epi8};
use std::mem::MaybeUninit;

use super::matmul::{GroupColumn, IntegerTiles, QuantColumns, TileSums, group_scales, has_halves, quad_codes};
use super::{Wide, prefetch};
use crate::lanes::{Avx512, LANES, Lanes};
use crate::weights::{Format, GROUP, WeightType, for_format};

/// Tokens per call: the rows of a tile.
const TOKENS: usize = 16;
/// Maximum number of results of the tile unit before the vector unit's turn.
const TURN_RESULTS: usize = 18;

/// What `table` knows of this module.
pub(super) const WIDE: Wide = Wide {
    tokens: TOKENS,
    rows_min: 24,
    tokens_min: 11,
    column_bytes: LANES,
    group_bytes: size_of::<Arranged>(),
    unpack,
    arrange,
    multiply,
};

#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn unpack(kind: WeightType, tile: IntegerTiles, out: *mut i8) {
    // SAFETY: the contract of `Wide`.
    for_format!(kind, F => unsafe { unpack_tile::<F>(tile, out) })
}

#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn multiply(
    kind: WeightType,
    tiles: IntegerTiles,
    values: *const i8,
    x: *const u8,
    factors: *const f32,
    out: TileSums,
) {
    // SAFETY: the contract of `Wide`.
    for_format!(kind, F => unsafe { multiply_tiles::<F>(tiles, values, x.cast(), factors, out) })
}

/// Unpacks a tile to signed bytes: for each group 8 lines of 16 rows x 4 columns.
///
/// # Safety
/// `tile` is valid in format `F`, `out` for 16 bytes a column; AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn unpack_tile<F: Format>(tile: IntegerTiles, out: *mut i8) {
    // SAFETY: 8 lines for each group, in both.
    unsafe {
        let zero = _mm512_set1_epi8(F::ZERO as i8);
        for g in 0..tile.cols / GROUP {
            let lines = tile.codes.add(g * F::PLANES.lines() * 64);
            let to = out.add(g * GROUP * LANES);
            for q in 0..8 {
                let codes = quad_codes::<Avx512, F>(lines, q);
                _mm512_storeu_si512(to.add(q * 64).cast(), _mm512_sub_epi8(codes, zero));
            }
        }
    }
}

/// One group of `TOKENS` columns, all that `multiply_tiles` reads of it side by side.
#[repr(C, align(64))]
struct Arranged {
    codes: [[i8; GROUP]; TOKENS],
    scales: [f32; TOKENS],
    scaled_sums: [f32; TOKENS],
    /// Of both halves.
    sums: [[i32; 2]; TOKENS],
}

/// # Safety
/// `x` is readable for `TOKENS` tokens of `groups` groups, `out` is aligned and has room for as many `Arranged`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn arrange(x: QuantColumns, groups: usize, out: *mut u8) {
    let out = out.cast::<Arranged>();
    for g in 0..groups {
        // SAFETY: `g` and `t` stay within these bounds; every field is written.
        unsafe {
            let to = &mut *out.add(g);
            for t in 0..TOKENS {
                let at = t * groups + g;
                to.codes[t] = *x.codes.add(at * GROUP).cast();
                to.scales[t] = *x.scales.add(at);
                to.scaled_sums[t] = *x.scaled_sums.add(at);
                to.sums[t] = *x.sums.add(at * 2).cast();
            }
        }
    }
}

/// The products of unpacked tiles with `TOKENS` token columns.
///
/// Tile unit and vector unit take long turns: while tile instructions are in flight, this processor's vector unit runs
/// at half its speed. All tiles have their turn on some groups before the next groups, so that the tokens of a turn stay
/// in the first-level cache.
///
/// # Safety
/// `values` is the tiles unpacked; `x` is all groups of `TOKENS` tokens; `factors` and `out` are valid for as many, and `out`
/// for all tiles; AVX-512 and AMX are there, and the kernel has given permission to use tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply_tiles<F: Format>(
    tiles: IntegerTiles,
    values: *const i8,
    x: *const Arranged,
    factors: *const f32,
    out: TileSums,
) {
    let cols = tiles.cols;
    let groups = cols / GROUP;
    let turn = groups.div_ceil(groups.div_ceil(TURN_RESULTS / per_group::<F>()));
    let mut dots = MaybeUninit::<Results>::uninit();
    let dots = dots.as_mut_ptr().cast::<[[i32; LANES]; TOKENS]>();
    // SAFETY: turns stay within the groups of tiles and tokens; tiles, values and results follow each other. Whatever is
    // read of `dots` has been stored before.
    unsafe {
        configure::<F>();
        for first in (0..groups).step_by(turn) {
            let end = groups.min(first + turn);
            for i in 0..tiles.count {
                let lines = values.add((i * cols + first * GROUP) * LANES);
                tile_turn::<F>(x.add(first), lines, end - first, dots);
                let to = out.start.add(i * LANES);
                let mut totals = [Avx512::splat(0.0); TOKENS];
                if first > 0 {
                    for t in 0..TOKENS {
                        totals[t] = Avx512::load(to.add(t * out.stride));
                    }
                }
                for g in first..end {
                    let scales = group_scales::<Avx512, F>(tiles.scales.add(i * tiles.scale_bytes), g);
                    let x = &*x.add(g);
                    let dots = dots.add((g - first) * per_group::<F>());
                    let next_lines = lines.wrapping_add((cols + (g - first) * GROUP) * LANES);
                    for line in 0..GROUP / 4 {
                        prefetch(next_lines.wrapping_add(line * 64));
                    }
                    for t in 0..TOKENS {
                        let (scale, scaled_sum, sums) = (x.scales[t], x.scaled_sums[t], x.sums[t]);
                        let first = load(&(*dots)[t]);
                        let second = if has_halves::<F>() { load(&(*dots.add(1))[t]) } else { first };
                        let column = GroupColumn { scale, scaled_sum, sums };
                        totals[t] = scales.add::<F>(totals[t], [first, second], column);
                    }
                }
                for t in 0..TOKENS {
                    let factor = if end == groups { *factors.add(t) } else { 1.0 };
                    Avx512::store(to.add(t * out.stride), Avx512::mul(totals[t], Avx512::splat(factor)));
                }
            }
        }
        release();
    }
}

/// Results for each group: one, or one for each half.
const fn per_group<F: Format>() -> usize {
    GROUP / F::SCALES.sub_len()
}

/// Integer sums of a turn: `[result, token, row]`. With the operands of a turn they fit the first-level cache.
#[repr(C, align(64))]
struct Results([[[i32; LANES]; TOKENS]; TURN_RESULTS]);

#[inline(always)]
unsafe fn load(from: &[i32; LANES]) -> __m512i {
    // SAFETY: 16 numbers are one vector.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// The operand of `ldtilecfg`, as the processor's manual lays it out.
#[repr(C, align(64))]
pub(crate) struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    /// For each of the eight registers, its rows and the bytes of each.
    pub(crate) fn new(shape: impl Fn(usize) -> (u8, u16)) -> Self {
        let mut config = Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for register in 0..8 {
            (config.rows[register], config.row_bytes[register]) = shape(register);
        }
        config
    }
}

/// Shapes the tile registers for format `F`: 0-3 results, 4-5 tokens, 6-7 weights.
/// `release` must follow when the matmul is done.
///
/// # Safety
/// AMX is there, and the kernel has given permission to use tiles.
unsafe fn configure<F: Format>() {
    let sub = F::SCALES.sub_len();
    let config = TileConfig::new(|register| match register {
        0..4 => (TOKENS as u8, 64),
        4..6 => (TOKENS as u8, sub as u16),
        _ => (sub as u8 / 4, 64),
    });
    // SAFETY: `config` is a valid configuration; without `nomem` it is in memory before it is read. Compiled code never
    // touches tile registers, so they keep their shapes between the blocks of this module.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags)) }
}

/// Gives the tile registers back, so that the system need not save them.
///
/// # Safety
/// AMX is there.
pub(super) unsafe fn release() {
    // SAFETY: nothing but the tile registers changes.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
}

/// Integer sums of `count` neighbouring groups, a result for each or for each half.
///
/// Each block of four results is stored while the next is computed: a store right after its product would wait for it.
///
/// # Safety
/// `x` and `lines` are valid for the groups and the configured shapes, `to` for their results.
#[inline(always)]
unsafe fn tile_turn<F: Format>(x: *const Arranged, lines: *const i8, count: usize, to: *mut [[i32; LANES]; TOKENS]) {
    macro_rules! multiply {
        ($at:expr, $stored:expr, $([$($store:literal)?] $result:literal $tokens:literal $weights:literal $offset:ident)*) => {
            asm!(
                $(
                    concat!("tileloadd tmm", $tokens, ", [{x} + {row} + {", stringify!($offset), "}]"),
                    concat!("tileloadd tmm", $weights, ", [{lines} + {line} + ", $result, "*{block}]"),
                    $(concat!("tilestored [{stored} + {line} + ", $store, "*1024], tmm", $store),)?
                    concat!("tilezero tmm", $result),
                    concat!("tdpbssd tmm", $result, ", tmm", $tokens, ", tmm", $weights),
                )*
                // A block that stores nothing has to name its operand nevertheless.
                "/* {stored} */",
                x = in(reg) x.cast::<i8>().add(operand_offset::<F>($at)),
                lines = in(reg) lines.add($at * F::SCALES.sub_len() * LANES),
                stored = in(reg) to.add($stored),
                row = in(reg) GROUP,
                line = in(reg) 64usize,
                block = const F::SCALES.sub_len() * LANES,
                $($offset = const operand_offset::<F>($result),)*
                options(nostack, preserves_flags),
            )
        };
    }
    macro_rules! store {
        ($at:expr, $($result:literal)*) => {
            asm!(
                $(concat!("tilestored [{to} + {line} + ", $result, "*1024], tmm", $result),)*
                to = in(reg) to.add($at),
                line = in(reg) 64usize,
                options(nostack, preserves_flags),
            )
        };
    }
    let results = count * per_group::<F>();
    // SAFETY: the caller's promise; compiled code does not use tile registers.
    unsafe {
        if results < BLOCK {
            for at in 0..results {
                multiply!(at, at, [] 0 4 6 a);
                store!(at, 0);
            }
            return;
        }
        multiply!(0, 0, [] 0 4 6 a  [] 1 5 7 b  [] 2 4 6 c  [] 3 5 7 d);
        let (mut at, mut stored) = (BLOCK, 0);
        while at + BLOCK <= results {
            multiply!(at, stored, [0] 0 4 6 a  [1] 1 5 7 b  [2] 2 4 6 c  [3] 3 5 7 d);
            (stored, at) = (at, at + BLOCK);
        }
        match results - at {
            1 => {
                multiply!(at, stored, [0] 0 4 6 a);
                store!(stored, 1 2 3);
                store!(at, 0);
            }
            2 => {
                multiply!(at, stored, [0] 0 4 6 a  [1] 1 5 7 b);
                store!(stored, 2 3);
                store!(at, 0 1);
            }
            3 => {
                multiply!(at, stored, [0] 0 4 6 a  [1] 1 5 7 b  [2] 2 4 6 c);
                store!(stored, 3);
                store!(at, 0 1 2);
            }
            _ => store!(stored, 0 1 2 3),
        }
    }
}

/// Results that are computed one after the other before they are stored.
const BLOCK: usize = 4;

/// Where the tokens of a result stand, in bytes from the first.
const fn operand_offset<F: Format>(result: usize) -> usize {
    let sub = F::SCALES.sub_len();
    result / per_group::<F>() * size_of::<Arranged>() + result % per_group::<F>() * sub
}

/// Whether the processor has int8 and bf16 tiles and the system lets this process use them. Asks for that once.
pub(super) fn is_permitted() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;
    /// Linux's request for a large processor state, and the number of the tile registers in it.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| {
        let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 };
        // Every processor so far that has the one has the other.
        let (bf16, tiles, int8) = (features >> 22 & 1, features >> 24 & 1, features >> 25 & 1);
        // SAFETY: this call changes nothing but the permission of the process.
        [bf16, tiles, int8] == [1; 3]
            && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) } == 0
    })
}
