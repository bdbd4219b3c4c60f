//! Which format a page has at which age.

use std::fmt;
use std::str::FromStr;

use ruvllm_runner::{PAGE_TOKENS, PageFormat};

/// Formats of the pages of a sequence: hot at its end and its very beginning, warm behind, cold further back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// What new tokens are written in.
    pub hot: PageFormat,
    pub warm: PageFormat,
    pub cold: PageFormat,
    /// Tokens at the end of a sequence that stay hot.
    pub hot_tokens: usize,
    /// Tokens at the end of a sequence that are warm or hot.
    pub warm_tokens: usize,
    /// Tokens at the beginning that stay hot: every other attends to them.
    pub sink_tokens: usize,
}

impl Tiers {
    /// One format for all tokens: a cached text gives the very answer of a computed one.
    pub const fn uniform(format: PageFormat) -> Self {
        Self { hot: format, warm: format, cold: format, hot_tokens: 0, warm_tokens: 0, sink_tokens: 0 }
    }

    /// Half floats, then 8 bits, then `cold`.
    pub const fn with_cold(cold: PageFormat) -> Self {
        Self {
            hot: PageFormat::F16,
            warm: PageFormat::Q8,
            cold,
            hot_tokens: 256,
            warm_tokens: 2048,
            sink_tokens: PAGE_TOKENS,
        }
    }

    pub fn is_uniform(&self) -> bool {
        self.hot == self.warm && self.hot == self.cold
    }

    /// The format of a page in a sequence of `tokens` tokens, by age.
    pub fn format(&self, page: usize, tokens: usize) -> PageFormat {
        let (start, end) = (page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS);
        if start < self.sink_tokens || end + self.hot_tokens > tokens {
            self.hot
        } else if end + self.warm_tokens > tokens {
            self.warm
        } else {
            self.cold
        }
    }

    /// The pages of a sequence that have left a tier since it grew from `before` to `tokens` tokens, with their formats.
    pub(crate) fn aged(&self, before: usize, tokens: usize) -> impl Iterator<Item = (usize, PageFormat)> {
        let pages_behind =
            |tail: usize| before.saturating_sub(tail) / PAGE_TOKENS..tokens.saturating_sub(tail) / PAGE_TOKENS;
        let (cooling, freezing) = (pages_behind(self.hot_tokens), pages_behind(self.warm_tokens));
        // A text that grew by much at once may have pages that left both.
        let only_freezing = freezing.start..freezing.end.min(cooling.start);
        let aged = cooling.chain(only_freezing).map(move |page| (page, self.format(page, tokens)));
        aged.filter(|(_, format)| *format != self.hot)
    }
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TiersError {
    #[error("{0:?} is no KV format; there are {names}", names = format_names())]
    Format(String),
    #[error("{0} cannot be written token by token: the first format must be one of f16, q8, f16/q8, q8/f16")]
    Hot(PageFormat),
    #[error("{from} cannot become {to}: formats must become smaller from tier to tier")]
    Warmer { from: PageFormat, to: PageFormat },
    #[error("{0:?} is no number of tokens")]
    Tokens(String),
    #[error("all but the last tier need a length, such as f16:256, and lengths must grow")]
    Lengths,
    #[error("there are {0} tiers; give one to three")]
    Count(usize),
}

fn format_names() -> String {
    PageFormat::all().map(|format| format.to_string()).collect::<Vec<_>>().join(", ")
}

/// `f16`, or tiers from the end of a sequence back, all but the last with the distance at which they end:
/// `f16:256,q8:2048,q8/q4`.
impl FromStr for Tiers {
    type Err = TiersError;

    fn from_str(text: &str) -> Result<Self, TiersError> {
        let parse = |part: &str| {
            let (format, tokens) = part.split_once(':').map_or((part, None), |(format, tokens)| (format, Some(tokens)));
            let found = PageFormat::all().find(|known| known.to_string() == format);
            let format = found.ok_or_else(|| TiersError::Format(format.to_owned()))?;
            let number = |tokens: &str| tokens.parse::<usize>().map_err(|_| TiersError::Tokens(tokens.to_owned()));
            Ok((format, tokens.map(number).transpose()?))
        };
        let parts = text.split(',').map(parse).collect::<Result<Vec<_>, TiersError>>()?;
        let (hot, warm, cold, hot_tokens, warm_tokens) = match parts[..] {
            [(format, None)] => (format, format, format, 0, 0),
            [(hot, Some(near)), (cold, None)] => (hot, cold, cold, near, near),
            [(hot, Some(near)), (warm, Some(far)), (cold, None)] if near <= far => (hot, warm, cold, near, far),
            [_] | [_, _] | [_, _, _] => return Err(TiersError::Lengths),
            _ => return Err(TiersError::Count(parts.len())),
        };
        if !hot.is_appendable() {
            return Err(TiersError::Hot(hot));
        }
        for (from, to) in [(hot, warm), (warm, cold)] {
            if !from.can_become(to) {
                return Err(TiersError::Warmer { from, to });
            }
        }
        let sink_tokens = if hot == cold { 0 } else { PAGE_TOKENS };
        Ok(Self { hot, warm, cold, hot_tokens, warm_tokens, sink_tokens })
    }
}

/// As it is parsed.
impl fmt::Display for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_uniform() {
            write!(f, "{}", self.hot)
        } else {
            write!(f, "{}:{},{}:{},{}", self.hot, self.hot_tokens, self.warm, self.warm_tokens, self.cold)
        }
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_runner::{KeyFormat, KvShape, ValueFormat};

    use super::*;

    const COLD: PageFormat = PageFormat::new(KeyFormat::Q8, ValueFormat::Q4);

    #[test]
    fn pages_cool_with_their_distance_from_the_end_and_sinks_do_not() {
        let tiers = Tiers::with_cold(COLD);
        let formats =
            |tokens: usize| (0..tokens.div_ceil(16)).map(|page| tiers.format(page, tokens)).collect::<Vec<_>>();
        assert!(formats(272).iter().all(|format| *format == PageFormat::F16));
        let formats = formats(4096);
        assert_eq!(formats[0], PageFormat::F16);
        assert!(formats[1..128].iter().all(|format| *format == COLD));
        assert!(formats[128..240].iter().all(|format| *format == PageFormat::Q8));
        assert!(formats[240..].iter().all(|format| *format == PageFormat::F16));
    }

    #[test]
    fn tiers_are_read_as_they_are_written() {
        let tiers: Tiers = "f16:256,q8:2048,q8/q4".parse().unwrap();
        assert_eq!(tiers, Tiers::with_cold(COLD));
        for text in ["f16", "q8", "f16:256,q8:2048,q8/q4", "q8:100,q8:300,q4"] {
            let tiers: Tiers = text.parse().unwrap();
            assert_eq!(tiers.to_string(), text);
        }
        assert_eq!("f16:64,q8".parse::<Tiers>().unwrap().to_string(), "f16:64,q8:64,q8");
        for (text, part) in [
            ("", "no KV format"),
            ("q5", "there are f16, f16/q8"),
            ("q4", "token by token"),
            ("q8:10,f16", "cannot become"),
            ("f16:x,q8", "no number"),
            ("f16,q8", "need a length"),
            ("f16:20,q8:10,q4", "must grow"),
            ("f16:1,q8:2,q8:3,q4", "4 tiers"),
        ] {
            let message = text.parse::<Tiers>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    /// Whatever the steps in which a sequence grows, its pages end up in the formats of their age.
    #[test]
    fn growing_in_any_steps_leads_to_the_same_formats() {
        let tiers = Tiers::with_cold(COLD);
        for step in [1, 16, 100, 512, 5000] {
            let (mut formats, mut tokens) = (vec![tiers.hot; 320], 0);
            while tokens < 5000 {
                let next = 5000.min(tokens + step);
                tiers.aged(tokens, next).for_each(|(page, format)| formats[page] = format);
                tokens = next;
                if step == 512 {
                    (0..tokens / 16).for_each(|page| assert_eq!(formats[page], tiers.format(page, tokens)));
                }
            }
            (0..5000 / 16).for_each(|page| assert_eq!(formats[page], tiers.format(page, 5000), "page {page}"));
        }
        assert_eq!(Tiers::uniform(PageFormat::F16).aged(0, 5000).count(), 0);
    }

    /// The promise of the specification, on the shape of the default model.
    #[test]
    fn tiers_take_a_fraction_of_the_bytes_of_half_floats() {
        let shape = KvShape::new(30, 3, 64);
        let share = |keys: KeyFormat, tokens: usize| {
            let tiers = Tiers::with_cold(PageFormat::new(keys, ValueFormat::Q4));
            let bytes = (0..tokens / PAGE_TOKENS).map(|page| shape.page_bytes(tiers.format(page, tokens)));
            bytes.sum::<usize>() as f64 / (tokens / PAGE_TOKENS * shape.page_bytes(PageFormat::F16)) as f64
        };
        for (keys, tokens, most) in [
            (KeyFormat::Q4, 4096, 0.44),
            (KeyFormat::Q4, 16384, 0.33),
            (KeyFormat::Q8, 4096, 0.50),
            (KeyFormat::Q8, 16384, 0.44),
        ] {
            let share = share(keys, tokens);
            println!("{keys:?} keys, {tokens} tokens: {share:.3} of half floats");
            assert!(share <= most, "{keys:?} keys, {tokens} tokens: {share}");
        }
    }
}
