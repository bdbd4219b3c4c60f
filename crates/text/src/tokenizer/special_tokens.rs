//! Finding special tokens in text before it is cut into words.
//!
//! Two groups. *Trusted* tokens (control, unknown, and user-defined ones that look like control) are found only in
//! text that the caller vouches for. *Literals* (other user-defined tokens, such as runs of spaces) are found in any
//! text, because the model was trained that way.

use aho_corasick::{AhoCorasick, MatchKind};

use super::TokenizerError;
use super::token_table::TokenTable;
use crate::vocabulary::TokenKind;

/// Whether special tokens written out in a text become those tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are ordinary text. For everything that a user or a tool wrote.
    AsText,
    /// They become tokens. For chat templates and prompts that the caller vouches for.
    Parse,
}

/// What a special token does to the text around it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Surroundings {
    pub swallows_whitespace_before: bool,
    pub swallows_whitespace_after: bool,
    /// Only matches where no letter or digit touches it.
    pub needs_word_boundary: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Piece<'t> {
    Token(u32),
    Text(&'t str),
}

#[derive(Debug)]
pub(crate) struct SpecialTokenFinder {
    trusted: Option<Group>,
    literals: Option<Group>,
}

#[derive(Debug)]
struct Group {
    automaton: AhoCorasick,
    tokens: Vec<(u32, Surroundings)>,
}

impl SpecialTokenFinder {
    pub(crate) fn new(table: &TokenTable, surroundings: impl Fn(u32) -> Surroundings) -> Result<Self, TokenizerError> {
        let group = |wanted: fn(TokenKind, &str) -> bool| {
            let ids: Vec<u32> = (0..table.len() as u32)
                .filter(|&id| !table.text(id).is_empty() && wanted(table.kind(id), table.text(id)))
                .collect();
            Group::new(&ids, table, &surroundings)
        };
        Ok(Self { trusted: group(is_trusted)?, literals: group(is_literal)? })
    }

    /// Divides text into special tokens and the runs between them.
    ///
    /// `guards` are positions, in ascending order, that no trusted token may span.
    pub(crate) fn split<'t>(&self, text: &'t str, special: SpecialTokens, guards: &[usize]) -> Vec<Piece<'t>> {
        let mut runs = vec![Piece::Text(text)];
        let trusted = self.trusted.as_ref().filter(|_| special == SpecialTokens::Parse);
        for (group, guards) in [(trusted, guards), (self.literals.as_ref(), &[])] {
            let Some(group) = group else { continue };
            let mut divided = Vec::new();
            for run in runs {
                match run {
                    Piece::Text(run) => group.split(run, guards, &mut divided),
                    token => divided.push(token),
                }
            }
            runs = divided;
        }
        runs.retain(|piece| *piece != Piece::Text(""));
        runs
    }
}

impl Group {
    fn new(
        ids: &[u32],
        table: &TokenTable,
        surroundings: &dyn Fn(u32) -> Surroundings,
    ) -> Result<Option<Self>, TokenizerError> {
        if ids.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|&id| table.text(id)))
            .map_err(|error| TokenizerError::SpecialTokens { count: ids.len(), reason: error.to_string() })?;
        Ok(Some(Self { automaton, tokens: ids.iter().map(|&id| (id, surroundings(id))).collect() }))
    }

    fn split<'t>(&self, text: &'t str, guards: &[usize], out: &mut Vec<Piece<'t>>) {
        let (mut done, mut at) = (0, 0);
        while let Some(found) = self.automaton.find(aho_corasick::Input::new(text).range(at..)) {
            let (id, surroundings) = self.tokens[found.pattern()];
            let (start, end) = (found.start(), found.end());
            if is_guarded(guards, start, end) || (surroundings.needs_word_boundary && touches_word(text, start, end)) {
                // Look again one character further on: another token may begin inside the refused one.
                at = start + text[start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            let mut before = &text[done..start];
            if surroundings.swallows_whitespace_before {
                before = before.trim_end();
            }
            out.push(Piece::Text(before));
            out.push(Piece::Token(id));
            at = end;
            if surroundings.swallows_whitespace_after {
                at = text.len() - text[end..].trim_start().len();
            }
            done = at;
        }
        out.push(Piece::Text(&text[done..]));
    }
}

fn is_guarded(guards: &[usize], start: usize, end: usize) -> bool {
    let first_after_start = guards.partition_point(|&guard| guard <= start);
    guards.get(first_after_start).is_some_and(|&guard| guard < end)
}

fn touches_word(text: &str, start: usize, end: usize) -> bool {
    let before = text[..start].chars().next_back();
    let after = text[end..].chars().next();
    before.into_iter().chain(after).any(|char| char.is_alphanumeric() || char == '_')
}

/// Tokens that only trusted text may contain.
pub(crate) fn is_trusted(kind: TokenKind, text: &str) -> bool {
    match kind {
        TokenKind::Control | TokenKind::Unknown => true,
        TokenKind::UserDefined => looks_like_control(text),
        _ => false,
    }
}

fn is_literal(kind: TokenKind, text: &str) -> bool {
    kind == TokenKind::UserDefined && !looks_like_control(text)
}

/// Converters often mark role markers as user-defined; taking them from user text would let users forge turns.
fn looks_like_control(text: &str) -> bool {
    let opens = ["<|", "<｜"].iter().any(|mark| text.starts_with(mark)) && text.ends_with('>');
    let closes = ["|>", "｜>"].iter().any(|mark| text.ends_with(mark)) && text.starts_with('<');
    opens || closes || super::end_of_generation::NAMES.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use TokenKind::{Control, Normal, UserDefined};

    fn finder(tokens: &[(&str, TokenKind)], surroundings: Surroundings) -> SpecialTokenFinder {
        let texts = tokens.iter().map(|token| token.0.to_owned()).collect();
        let table = TokenTable::new(texts, tokens.iter().map(|token| token.1).collect(), |_, _| ());
        SpecialTokenFinder::new(&table, |_| surroundings).unwrap()
    }

    const TOKENS: [(&str, TokenKind); 5] =
        [("a", Normal), ("<s>", Control), ("<s>x", Control), ("  ", UserDefined), ("<|user|>", UserDefined)];

    #[test]
    fn control_tokens_are_found_only_when_asked_for() {
        use Piece::{Text, Token};
        let finder = finder(&TOKENS, Surroundings::default());
        let text = "a<s>  <|user|>b";
        assert_eq!(finder.split(text, SpecialTokens::AsText, &[]), [Text("a<s>"), Token(3), Text("<|user|>b")]);
        let parsed = [Text("a"), Token(1), Token(3), Token(4), Text("b")];
        assert_eq!(finder.split(text, SpecialTokens::Parse, &[]), parsed);
        assert_eq!(finder.split("<s>xy", SpecialTokens::Parse, &[]), [Token(2), Text("y")]);
        assert_eq!(finder.split("", SpecialTokens::Parse, &[]), []);
    }

    #[test]
    fn a_guard_inside_a_token_keeps_it_text() {
        use Piece::{Text, Token};
        let finder = finder(&TOKENS, Surroundings::default());
        assert_eq!(finder.split("<s><s>", SpecialTokens::Parse, &[1]), [Text("<s>"), Token(1)]);
        assert_eq!(finder.split("<s><s>", SpecialTokens::Parse, &[3]), [Token(1), Token(1)]);
        assert_eq!(finder.split("<s>  ", SpecialTokens::Parse, &[2]), [Text("<s>"), Token(3)]);
    }

    #[test]
    fn whitespace_and_word_boundaries_are_respected() {
        use Piece::{Text, Token};
        let both = Surroundings {
            swallows_whitespace_before: true,
            swallows_whitespace_after: true,
            needs_word_boundary: false,
        };
        let pieces = finder(&TOKENS[..2], both);
        assert_eq!(pieces.split("x <s>\n y", SpecialTokens::Parse, &[]), [Text("x"), Token(1), Text("y")]);
        let lonely = Surroundings { needs_word_boundary: true, ..Default::default() };
        let pieces = finder(&TOKENS[..2], lonely);
        assert_eq!(pieces.split("x<s> <s> ", SpecialTokens::Parse, &[]), [Text("x<s> "), Token(1), Text(" ")]);
    }
}
