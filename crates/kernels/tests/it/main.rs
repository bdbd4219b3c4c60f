//! All tests of this crate from outside: one program, as each more costs a link.

mod support;

mod attention;
mod byte_rows;
mod experts;
mod formats;
mod gemm;
mod low_rank;
mod matmul;
mod quantize;
mod rows;
mod sets;
mod slices;
mod tiers;
