//! Half floats, which WebAssembly has no instructions for.

/// The float that a half float is.
#[inline(always)]
pub fn widen(half: u16) -> f32 {
    /// Exponents of floats are larger by 112.
    const REBASE: f32 = f32::from_bits((127 + 112) << 23);
    let (sign, rest) = ((half & 0x8000) as u32, (half & 0x7fff) as u32);
    // Multiplying treats numbers without a leading one as it does all others.
    let rebased = (f32::from_bits(rest << 13) * REBASE).to_bits();
    let endless = if rest >= 0x7c00 { 0xff << 23 } else { 0 };
    f32::from_bits(rebased | endless | sign << 16)
}

/// The half float that is closest to a float; of two, the even one.
#[inline(always)]
pub fn narrow(number: f32) -> u16 {
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    const TOO_LARGE: u32 = (127 + 16) << 23;
    let (sign, rest) = (number.to_bits() >> 16 & 0x8000, number.to_bits() & 0x7fff_ffff);
    let half = if rest >= TOO_LARGE {
        if rest > 0xff << 23 { 0x7e00 } else { 0x7c00 }
    } else if rest < SMALLEST_NORMAL {
        // The unit in the last place of 1/2 is that of the smallest half floats, so adding rounds to it.
        (f32::from_bits(rest) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        let is_odd = rest >> 13 & 1;
        (rest - (112 << 23) + 0xfff + is_odd) >> 13
    };
    (half | sign) as u16
}
