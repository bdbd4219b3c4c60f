//! How the numbers of a page are stored.

use std::fmt;

/// How keys are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyFormat {
    /// Half floats.
    F16,
    /// Bytes with a scale for each token and 32 dimensions.
    Q8,
    /// Six bits; each dimension (channel) has a scale and an offset for all tokens of the page.
    Q6,
    /// The same with four bits.
    Q4,
}

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ValueFormat {
    /// Half floats.
    F16,
    /// Bytes with a scale for each token and 32 dimensions.
    Q8,
    /// Four bits with a scale and a zero point for each token and up to 64 dimensions.
    Q4,
}

/// How the keys and the values of a page are stored. Ordered from hot to cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageFormat {
    pub keys: KeyFormat,
    pub values: ValueFormat,
}

impl KeyFormat {
    pub const ALL: [Self; 4] = [Self::F16, Self::Q8, Self::Q6, Self::Q4];

    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q6 => "q6",
            Self::Q4 => "q4",
        }
    }
}

impl ValueFormat {
    pub const ALL: [Self; 3] = [Self::F16, Self::Q8, Self::Q4];

    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }
}

impl PageFormat {
    pub const F16: Self = Self { keys: KeyFormat::F16, values: ValueFormat::F16 };
    pub const Q8: Self = Self { keys: KeyFormat::Q8, values: ValueFormat::Q8 };

    /// What pages are as they age, whichever keys a model bears. The other formats are as good, but less looked after.
    pub const TIERS: [Self; 5] = [
        Self::F16,
        Self::Q8,
        Self { keys: KeyFormat::Q8, values: ValueFormat::Q4 },
        Self { keys: KeyFormat::Q6, values: ValueFormat::Q4 },
        Self { keys: KeyFormat::Q4, values: ValueFormat::Q4 },
    ];

    /// How many formats there are.
    pub const COUNT: usize = KeyFormat::ALL.len() * ValueFormat::ALL.len();

    /// All formats, hot keys first.
    pub fn all() -> impl Iterator<Item = Self> {
        KeyFormat::ALL.into_iter().flat_map(|keys| ValueFormat::ALL.map(|values| Self { keys, values }))
    }

    /// Its place in `all`.
    pub const fn index(self) -> usize {
        self.keys as usize * ValueFormat::ALL.len() + self.values as usize
    }

    /// Whether tokens can be added one by one. The others need to see all tokens of a page.
    pub const fn is_appendable(self) -> bool {
        matches!(self.keys, KeyFormat::F16 | KeyFormat::Q8) && matches!(self.values, ValueFormat::F16 | ValueFormat::Q8)
    }

    /// Whether a page of this format can be made one of `to`: no part may become finer than it is, and what is packed
    /// by channel or zero point stays as it is.
    pub fn can_become(self, to: Self) -> bool {
        let keys = self.keys == to.keys || (self.keys <= KeyFormat::Q8 && self.keys < to.keys);
        keys && self.values <= to.values
    }
}

/// `f16`, `q8`, or keys and values apart, such as `q4/q8`.
impl fmt::Display for PageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, values) = (self.keys.name(), self.values.name());
        if keys == values { f.pad(keys) } else { f.pad(&format!("{keys}/{values}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_numbered_in_order_and_named_in_short() {
        let names: Vec<String> = PageFormat::all().map(|format| format.to_string()).collect();
        assert_eq!(names.join(" "), "f16 f16/q8 f16/q4 q8/f16 q8 q8/q4 q6/f16 q6/q8 q6/q4 q4/f16 q4/q8 q4");
        assert!(PageFormat::all().enumerate().all(|(i, format)| format.index() == i));
        assert_eq!(names.len(), PageFormat::COUNT);
    }

    #[test]
    fn pages_only_become_colder() {
        let of = |keys, values| PageFormat { keys, values };
        let cold = of(KeyFormat::Q4, ValueFormat::Q4);
        assert!(PageFormat::F16.can_become(PageFormat::Q8) && PageFormat::Q8.can_become(cold));
        assert!(PageFormat::F16.can_become(cold) && cold.can_become(cold));
        assert!(!PageFormat::Q8.can_become(PageFormat::F16) && !cold.can_become(PageFormat::Q8));
        assert!(!of(KeyFormat::Q6, ValueFormat::Q8).can_become(cold));
        assert!(of(KeyFormat::Q6, ValueFormat::Q8).can_become(of(KeyFormat::Q6, ValueFormat::Q4)));
    }
}
