//! What a router sees of a request: 128 small numbers.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// Number of features.
pub const FEATURES: usize = 128;
/// Features that are figures of the text, and those that are counts of hashed words: what it is about. The others are
/// counts of hashed pairs of letters: what language it is in.
const FIGURES: usize = 16;
const WORDS: usize = 64;
/// How much of a text is read: of a longer one its beginning and its end, where the question usually is.
const HEAD_BYTES: usize = 3 << 10;
const TAIL_BYTES: usize = 1 << 10;
/// Names this layout. Features that were stored with another are not read.
const LAYOUT: &str = "1.";
/// The largest number, which stands for 1.
const ONE: f64 = 127.0;

/// What is asked, as far as a choice between models depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskedText<'a> {
    /// The last message of the user, or the text to continue.
    pub text: &'a str,
    /// Length of everything else in the prompt.
    pub other_bytes: usize,
    /// Messages of the conversation.
    pub messages: usize,
    pub has_system: bool,
    pub tools: usize,
    /// Whether the answer must have a format, such as a JSON schema.
    pub has_format: bool,
    pub max_tokens: Option<usize>,
}

/// The features of a request, each from -127 to 127, so that what is stored is exactly what was decided by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Features([i8; FEATURES]);

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({})", self.to_text())
    }
}

impl Features {
    /// Takes time that is bounded, whatever the text's length.
    pub fn of(asked: &AskedText<'_>) -> Self {
        let [head, tail] = ends(asked.text);
        let mut values = [0.0; FEATURES];
        let (figures, counts) = values.split_at_mut(FIGURES);
        figures.copy_from_slice(&figures_of(asked, [head, tail]));
        let (words, pairs) = counts.split_at_mut(WORDS);
        count_words((words, pairs), [head, tail]);
        [words, pairs].into_iter().for_each(normalise);
        Self::new(&values)
    }

    /// Makes features of numbers from -1 to 1.
    pub fn new(values: &[f64; FEATURES]) -> Self {
        Self(values.map(|value| (value.clamp(-1.0, 1.0) * ONE).round() as i8))
    }

    /// Returns the features as numbers from -1 to 1.
    pub fn values(&self) -> [f64; FEATURES] {
        self.0.map(|value| f64::from(value) / ONE)
    }

    /// Returns what is stored.
    pub fn to_text(&self) -> String {
        format!("{LAYOUT}{}", STANDARD_NO_PAD.encode(self.0.map(|value| value as u8)))
    }

    /// Reads what [`Features::to_text`] wrote. `None` for any other text, and for another layout.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = STANDARD_NO_PAD.decode(text.strip_prefix(LAYOUT)?).ok()?;
        let bytes: [u8; FEATURES] = bytes.try_into().ok()?;
        Some(Self(bytes.map(|byte| byte as i8)))
    }
}

/// Returns the beginning and the end of a text; the end is empty for a short one.
fn ends(text: &str) -> [&str; 2] {
    if text.len() <= HEAD_BYTES + TAIL_BYTES {
        return [text, ""];
    }
    let head = text.floor_char_boundary(HEAD_BYTES);
    let tail = text.ceil_char_boundary(text.len() - TAIL_BYTES);
    [&text[..head], &text[tail..]]
}

fn figures_of(asked: &AskedText<'_>, ends: [&str; 2]) -> [f64; FIGURES] {
    let characters = Characters::of(ends);
    let count = characters.all.max(1) as f64;
    // Shares are small, so their roots are what differs.
    let share = |counted: usize| (counted as f64 / count).sqrt();
    let flag = |is: bool| f64::from(u8::from(is));
    let last = ends.iter().rev().find(|end| !end.is_empty()).unwrap_or(&"").trim_end();
    [
        // Up to a megabyte.
        size(asked.text.len(), 20.0),
        size(asked.other_bytes, 20.0),
        size(asked.messages.saturating_sub(1), 8.0),
        flag(asked.has_system),
        size(asked.tools, 6.0),
        flag(asked.has_format),
        asked.max_tokens.map_or(0.0, |tokens| size(tokens, 16.0)),
        share(characters.digits),
        share(characters.foreign),
        share(characters.code),
        share(characters.capitals),
        share(characters.lines),
        flag(ends.iter().any(|end| end.contains("```"))),
        flag(last.ends_with('?')),
        (count / characters.words.max(1) as f64 / 16.0).min(1.0),
        share(characters.stops),
    ]
}

/// Characters by their kinds; one may be of several.
#[derive(Default)]
struct Characters {
    all: usize,
    digits: usize,
    foreign: usize,
    code: usize,
    capitals: usize,
    lines: usize,
    stops: usize,
    /// Runs of characters that are no space.
    words: usize,
}

impl Characters {
    fn of(ends: [&str; 2]) -> Self {
        let mut counts = Self::default();
        for end in ends {
            let mut is_space_before = true;
            for c in end.chars() {
                let is_space = c.is_whitespace();
                counts.all += 1;
                counts.digits += usize::from(c.is_ascii_digit());
                counts.foreign += usize::from(!c.is_ascii());
                counts.code += usize::from(c.is_ascii_punctuation() && "{}()[];=<>_\\/|&*#`$".contains(c));
                counts.capitals += usize::from(c.is_uppercase());
                counts.lines += usize::from(c == '\n');
                counts.stops += usize::from(matches!(c, ',' | '.' | ':' | '!'));
                counts.words += usize::from(is_space_before && !is_space);
                is_space_before = is_space;
            }
        }
        counts
    }
}

/// Returns the logarithm of a count, as a share of the largest.
fn size(count: usize, largest_log2: f64) -> f64 {
    ((count as f64 + 1.0).log2() / largest_log2).min(1.0)
}

/// Counts words, pairs of words and pairs of letters by their hashes, half of them down: what shares a place cancels out
/// on average.
fn count_words((words, pairs): (&mut [f64], &mut [f64]), ends: [&str; 2]) {
    for end in ends {
        let mut before = None;
        for text in end.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            let word = hash_word(text, pairs);
            count(words, word, 1.0);
            if let Some(before) = before.replace(word) {
                count(words, mix(before.rotate_left(17) ^ word), 0.5);
            }
        }
    }
}

/// Makes the sum of all squares 1, so that texts are compared by what they are and not by their length.
fn normalise(places: &mut [f64]) {
    // What comes again and again says less than its number.
    places.iter_mut().for_each(|place| *place = place.signum() * place.abs().sqrt());
    let length = places.iter().map(|place| place * place).sum::<f64>().sqrt();
    if length > 0.0 {
        places.iter_mut().for_each(|place| *place /= length);
    }
}

fn count(places: &mut [f64], hash: u64, weight: f64) {
    let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
    places[(hash % places.len() as u64) as usize] += sign * weight;
}

/// The same on all machines: what is stored is read by others (FNV-1a over lower-case letters, mixed).
fn hash_word(word: &str, pairs: &mut [f64]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    // A word begins after a space.
    let mut before = u64::from(' ');
    for c in word.chars().flat_map(char::to_lowercase).map(u64::from) {
        hash = (hash ^ c).wrapping_mul(0x0100_0000_01b3);
        count(pairs, mix(before << 32 | c), 1.0);
        before = c;
    }
    mix(hash)
}

fn mix(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Features {
        Features::of(&AskedText { text, messages: 1, ..AskedText::default() })
    }

    fn similarity(one: &Features, other: &Features) -> f64 {
        let [one, other] = [one, other].map(|features| features.values());
        one[FIGURES..FIGURES + WORDS].iter().zip(&other[FIGURES..FIGURES + WORDS]).map(|(one, other)| one * other).sum()
    }

    #[test]
    fn texts_of_one_subject_are_alike_and_others_are_not() {
        let cake = of("How long do I bake an apple cake?");
        let tart = of("How long do I bake an apple tart, and how hot?");
        let code = of("fn main() { let x = vec![1, 2, 3]; }");
        assert!(similarity(&cake, &tart) > 0.4 && similarity(&cake, &code).abs() < 0.3);
        assert!((similarity(&cake, &cake) - 1.0).abs() < 0.02);
    }

    #[test]
    fn what_is_stored_comes_back_and_nothing_else_is_read() {
        let features = of("Grüße, 123 ```x```");
        assert_eq!(Features::parse(&features.to_text()), Some(features));
        for text in ["", "1.", "2.AAAA", "1.AAAA", "1.\u{e9}", &features.to_text()[..100]] {
            assert_eq!(Features::parse(text), None, "{text:?}");
        }
        // What was stored by one version of the program is read by the next.
        assert_eq!(blake3::hash(of("A stable text?").to_text().as_bytes()).to_hex()[..16], *STABLE);
    }

    const STABLE: &str = "379ccb46401425ed";

    #[test]
    fn long_and_strange_texts_are_read_at_both_ends() {
        let middle = "x".repeat(1 << 20);
        let long = |tail: &str| format!("Summarise {} {middle} {tail}", "ü".repeat(5000));
        let (one, other) = (of(&long("in French")), of(&long("in French")));
        assert_eq!(one, other);
        assert_ne!(one, of(&long("as a poem")));
        for text in ["", " ", "\u{0}", "\u{10ffff}", "a\u{301}"] {
            assert!(of(text).values().iter().all(|value| value.is_finite() && value.abs() <= 1.0));
        }
    }
}
