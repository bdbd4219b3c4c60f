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

/// Which layers a page holds keys and values of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageLayers {
    All,
    /// Those that attend to all tokens: the page has left the window of the others.
    Global,
}

/// How the keys and the values of a page are stored. Ordered from hot to cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageFormat {
    pub keys: KeyFormat,
    pub values: ValueFormat,
    pub layers: PageLayers,
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
    pub const F16: Self = Self::new(KeyFormat::F16, ValueFormat::F16);
    pub const Q8: Self = Self::new(KeyFormat::Q8, ValueFormat::Q8);

    /// What pages are as they age, whichever keys a model bears. The other formats are as good, but less looked after.
    pub const TIERS: [Self; 5] = [
        Self::F16,
        Self::Q8,
        Self::new(KeyFormat::Q8, ValueFormat::Q4),
        Self::new(KeyFormat::Q6, ValueFormat::Q4),
        Self::new(KeyFormat::Q4, ValueFormat::Q4),
    ];

    /// How many formats there are, with all layers and without those that have a window.
    pub const COUNT: usize = 2 * Self::COUNT_ALL;
    const COUNT_ALL: usize = KeyFormat::ALL.len() * ValueFormat::ALL.len();

    /// A page of all layers.
    pub const fn new(keys: KeyFormat, values: ValueFormat) -> Self {
        Self { keys, values, layers: PageLayers::All }
    }

    /// All formats of pages with all layers, hot keys first.
    pub fn all() -> impl Iterator<Item = Self> {
        KeyFormat::ALL.into_iter().flat_map(|keys| ValueFormat::ALL.map(|values| Self::new(keys, values)))
    }

    /// The same, followed by those without the layers that have a window.
    pub fn every() -> impl Iterator<Item = Self> {
        Self::all().chain(Self::all().map(Self::trimmed))
    }

    /// Its place in `every`.
    pub const fn index(self) -> usize {
        self.layers as usize * Self::COUNT_ALL + self.keys as usize * ValueFormat::ALL.len() + self.values as usize
    }

    /// Returns the format without the layers that have a window.
    pub const fn trimmed(self) -> Self {
        Self { layers: PageLayers::Global, ..self }
    }

    /// Whether tokens can be added one by one. The others need to see all tokens of a page.
    pub const fn is_appendable(self) -> bool {
        matches!(self.keys, KeyFormat::F16 | KeyFormat::Q8)
            && matches!(self.values, ValueFormat::F16 | ValueFormat::Q8)
            && matches!(self.layers, PageLayers::All)
    }

    /// Whether a page of this format can be made one of `to`: no part may become finer than it is, and what is packed
    /// by channel or zero point stays as it is.
    pub fn can_become(self, to: Self) -> bool {
        let keys = self.keys == to.keys || (self.keys <= KeyFormat::Q8 && self.keys < to.keys);
        keys && self.values <= to.values && self.layers <= to.layers
    }
}

/// `f16`, `q8`, or keys and values apart, such as `q4/q8`; with `global` behind it where only such layers are left.
impl fmt::Display for PageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, values) = (self.keys.name(), self.values.name());
        let layers = if self.layers == PageLayers::Global { " global" } else { "" };
        if keys == values { f.pad(&format!("{keys}{layers}")) } else { f.pad(&format!("{keys}/{values}{layers}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_numbered_in_order_and_named_in_short() {
        let names: Vec<String> = PageFormat::all().map(|format| format.to_string()).collect();
        assert_eq!(names.join(" "), "f16 f16/q8 f16/q4 q8/f16 q8 q8/q4 q6/f16 q6/q8 q6/q4 q4/f16 q4/q8 q4");
        assert!(PageFormat::every().enumerate().all(|(i, format)| format.index() == i));
        assert_eq!(PageFormat::every().count(), PageFormat::COUNT);
    }

    #[test]
    fn pages_only_become_colder() {
        let of = PageFormat::new;
        assert!(
            PageFormat::F16.can_become(PageFormat::Q8.trimmed())
                && !PageFormat::F16.trimmed().can_become(PageFormat::Q8)
        );
        assert!(!PageFormat::F16.trimmed().is_appendable());
        let cold = of(KeyFormat::Q4, ValueFormat::Q4);
        assert!(PageFormat::F16.can_become(PageFormat::Q8) && PageFormat::Q8.can_become(cold));
        assert!(PageFormat::F16.can_become(cold) && cold.can_become(cold));
        assert!(!PageFormat::Q8.can_become(PageFormat::F16) && !cold.can_become(PageFormat::Q8));
        assert!(!of(KeyFormat::Q6, ValueFormat::Q8).can_become(cold));
        assert!(of(KeyFormat::Q6, ValueFormat::Q8).can_become(of(KeyFormat::Q6, ValueFormat::Q4)));
    }
}
