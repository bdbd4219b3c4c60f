//! Four floats: a vector of WebAssembly where the module is built with SIMD, and otherwise four numbers. Either way the same bits.

#[cfg(target_feature = "simd128")]
mod vector {
    use core::arch::wasm32::{
        f32x4, f32x4_add, f32x4_div, f32x4_extract_lane, f32x4_mul, f32x4_pmax, f32x4_pmin, f32x4_splat, f32x4_sub,
        i32x4_add, i32x4_shl, i32x4_splat, i32x4_sub, v128,
    };

    #[derive(Clone, Copy)]
    pub struct Lanes(v128);

    impl Lanes {
        #[inline(always)]
        pub fn of(x: &[f32; 4]) -> Self {
            Self(f32x4(x[0], x[1], x[2], x[3]))
        }
        #[inline(always)]
        pub fn splat(x: f32) -> Self {
            Self(f32x4_splat(x))
        }
        #[inline(always)]
        pub fn numbers(self) -> [f32; 4] {
            let x = self.0;
            [
                f32x4_extract_lane::<0>(x),
                f32x4_extract_lane::<1>(x),
                f32x4_extract_lane::<2>(x),
                f32x4_extract_lane::<3>(x),
            ]
        }
        #[inline(always)]
        pub fn add(self, other: Self) -> Self {
            Self(f32x4_add(self.0, other.0))
        }
        #[inline(always)]
        pub fn sub(self, other: Self) -> Self {
            Self(f32x4_sub(self.0, other.0))
        }
        #[inline(always)]
        pub fn mul(self, other: Self) -> Self {
            Self(f32x4_mul(self.0, other.0))
        }
        #[inline(always)]
        pub fn div(self, other: Self) -> Self {
            Self(f32x4_div(self.0, other.0))
        }
        /// Each number, or the bound that it is beyond.
        #[inline(always)]
        pub fn clamp(self, low: f32, high: f32) -> Self {
            Self(f32x4_pmin(f32x4_pmax(self.0, f32x4_splat(low)), f32x4_splat(high)))
        }
        /// Two to the power of what is added to the bits of `zero`.
        #[inline(always)]
        pub fn power_of_two(self, zero: f32) -> Self {
            let exponent = i32x4_sub(self.0, i32x4_splat(zero.to_bits() as i32));
            Self(i32x4_shl(i32x4_add(exponent, i32x4_splat(127)), 23))
        }
    }
}

#[cfg(not(target_feature = "simd128"))]
mod vector {
    #[derive(Clone, Copy)]
    pub struct Lanes([f32; 4]);

    impl Lanes {
        #[inline(always)]
        pub fn of(x: &[f32; 4]) -> Self {
            Self(*x)
        }
        #[inline(always)]
        pub fn splat(x: f32) -> Self {
            Self([x; 4])
        }
        #[inline(always)]
        pub fn numbers(self) -> [f32; 4] {
            self.0
        }
        #[inline(always)]
        fn with(self, other: Self, of: impl Fn(f32, f32) -> f32) -> Self {
            let (a, b) = (self.0, other.0);
            Self([of(a[0], b[0]), of(a[1], b[1]), of(a[2], b[2]), of(a[3], b[3])])
        }
        #[inline(always)]
        pub fn add(self, other: Self) -> Self {
            self.with(other, |a, b| a + b)
        }
        #[inline(always)]
        pub fn sub(self, other: Self) -> Self {
            self.with(other, |a, b| a - b)
        }
        #[inline(always)]
        pub fn mul(self, other: Self) -> Self {
            self.with(other, |a, b| a * b)
        }
        #[inline(always)]
        pub fn div(self, other: Self) -> Self {
            self.with(other, |a, b| a / b)
        }
        /// Each number, or the bound that it is beyond.
        #[inline(always)]
        pub fn clamp(self, low: f32, high: f32) -> Self {
            let raised = self.with(Self::splat(low), |x, low| if x < low { low } else { x });
            raised.with(Self::splat(high), |x, high| if high < x { high } else { x })
        }
        /// Two to the power of what is added to the bits of `zero`.
        #[inline(always)]
        pub fn power_of_two(self, zero: f32) -> Self {
            let of = |x: f32| f32::from_bits(x.to_bits().wrapping_sub(zero.to_bits()).wrapping_add(127) << 23);
            Self(self.0.map(of))
        }
    }
}

pub use vector::Lanes;
