//! The constants that tell one integer format from another, as types, so that kernels are compiled once per format.

use super::WeightType;

/// How the codes of a tile are spread over bit planes. A line is 64 bytes: 16 rows times 4 neighbouring columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planes {
    /// 8 lines of whole bytes.
    Byte,
    /// 4 lines: low nibbles are columns 0-15 of the group, high nibbles columns 16-31.
    Nibble,
    /// `Nibble`, then one line whose bit `s` is the fifth bit of columns `4s..4s+4`.
    NibbleBit,
    /// `Nibble`, then 2 lines with bits 5 and 6, laid out as in `Pair`.
    NibblePair,
    /// 2 lines: bits `2s..2s+2` of line `i` are columns `4(2s+i)..`.
    Pair,
    /// `Pair`, then one line with the third bit, laid out as in `NibbleBit`.
    PairBit,
}

impl Planes {
    /// Lines per group of 32 columns.
    pub(crate) const fn lines(self) -> usize {
        match self {
            Self::Byte => 8,
            Self::Nibble => 4,
            Self::NibbleBit => 5,
            Self::NibblePair => 6,
            Self::Pair => 2,
            Self::PairBit => 3,
        }
    }
}

/// Which scales a tile stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// A half-float scale for each group of 32.
    Half,
    /// A half-float scale and offset for each group of 32.
    HalfOffset,
    /// Half-float scale for 256 columns, an 8-bit factor for each 32.
    Super32,
    /// `Super32` with offsets.
    Super32Offset,
    /// Half-float scale for 256 columns, an 8-bit factor for each 16.
    Super16,
    /// `Super16` with offsets.
    Super16Offset,
}

impl Scales {
    /// Columns that share one scale.
    pub(crate) const fn sub_len(self) -> usize {
        match self {
            Self::Super16 | Self::Super16Offset => 16,
            _ => 32,
        }
    }

    pub(crate) const fn has_offset(self) -> bool {
        matches!(self, Self::HalfOffset | Self::Super32Offset | Self::Super16Offset)
    }

    pub(crate) const fn is_super(self) -> bool {
        !matches!(self, Self::Half | Self::HalfOffset)
    }

    /// Groups of 32 that share one record of the scale stream.
    pub(crate) const fn record_groups(self) -> usize {
        if self.is_super() { 8 } else { 1 }
    }

    /// Bytes of the half floats at the start of a record (16 rows each).
    pub(crate) const fn header_bytes(self) -> usize {
        if self.has_offset() { 64 } else { 32 }
    }

    /// Bytes of 8-bit factors that each group of 32 adds to a record: all factors, then all offset factors.
    pub(crate) const fn group_bytes(self) -> usize {
        if !self.is_super() {
            return 0;
        }
        let factors = 32 / self.sub_len() * 16;
        if self.has_offset() { factors * 2 } else { factors }
    }

    pub(crate) const fn record_bytes(self) -> usize {
        self.header_bytes() + self.record_groups() * self.group_bytes()
    }
}

/// An integer weight format.
pub(crate) trait Format: 'static {
    const KIND: WeightType;
    const PLANES: Planes;
    const SCALES: Scales;
    /// The code that stands for zero.
    const ZERO: u8;
    /// Where codes are indices: what they stand for, shifted by `ZERO` to be unsigned.
    const TABLE: Option<[u8; 16]> = None;

    fn value(code: u8) -> i32 {
        let unsigned = Self::TABLE.map_or(code, |table| table[usize::from(code)]);
        i32::from(unsigned) - i32::from(Self::ZERO)
    }
}

macro_rules! formats {
    ($($name:ident: $planes:ident, $scales:ident, zero $zero:literal $(, table $table:expr)?;)*) => {
        $(
            #[derive(Debug)]
            pub(crate) enum $name {}
            impl Format for $name {
                const KIND: WeightType = WeightType::$name;
                const PLANES: Planes = Planes::$planes;
                const SCALES: Scales = Scales::$scales;
                const ZERO: u8 = $zero;
                $(const TABLE: Option<[u8; 16]> = Some($table);)?
            }
        )*
    };
}

formats! {
    Q4_0: Nibble, Half, zero 8;
    Q4_1: Nibble, HalfOffset, zero 0;
    Q5_0: NibbleBit, Half, zero 16;
    Q5_1: NibbleBit, HalfOffset, zero 0;
    Q8_0: Byte, Half, zero 128;
    Q2K: Pair, Super16Offset, zero 0;
    Q3K: PairBit, Super16, zero 4;
    Q4K: Nibble, Super32Offset, zero 0;
    Q5K: NibbleBit, Super32Offset, zero 0;
    Q6K: NibblePair, Super16, zero 32;
    Iq4Nl: Nibble, Half, zero 128, table IQ4_VALUES;
    Iq4Xs: Nibble, Super32, zero 128, table IQ4_VALUES;
    Mxfp4: Nibble, Half, zero 128, table MXFP4_VALUES;
}

const IQ4_VALUES: [u8; 16] = unsigned([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]);
/// Twice the values of E2M1; the block scale is halved to match.
const MXFP4_VALUES: [u8; 16] = unsigned([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);

const fn unsigned(values: [i8; 16]) -> [u8; 16] {
    let mut shifted = [0; 16];
    let mut i = 0;
    while i < 16 {
        shifted[i] = (values[i] as i16 + 128) as u8;
        i += 1;
    }
    shifted
}

/// Runs an expression with `$F` bound to the format type of an integer `WeightType`.
macro_rules! for_format {
    ($kind:expr, $F:ident => $body:expr) => {{
        use $crate::weights::WeightType as Kind;
        use $crate::weights::format as formats;
        macro_rules! with {
            ($name:ident) => {{
                type $F = formats::$name;
                $body
            }};
        }
        match $kind {
            Kind::Q4_0 => with!(Q4_0),
            Kind::Q4_1 => with!(Q4_1),
            Kind::Q5_0 => with!(Q5_0),
            Kind::Q5_1 => with!(Q5_1),
            Kind::Q8_0 => with!(Q8_0),
            Kind::Q2K => with!(Q2K),
            Kind::Q3K => with!(Q3K),
            Kind::Q4K => with!(Q4K),
            Kind::Q5K => with!(Q5K),
            Kind::Q6K => with!(Q6K),
            Kind::Iq4Nl => with!(Iq4Nl),
            Kind::Iq4Xs => with!(Iq4Xs),
            Kind::Mxfp4 => with!(Mxfp4),
            Kind::F32 | Kind::F16 | Kind::Bf16 => unreachable!("float weights have no integer format"),
        }
    }};
}
pub(crate) use for_format;
