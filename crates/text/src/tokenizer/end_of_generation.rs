//! Which tokens end a generation. Model files name one or two; many models end turns with others.

use super::token_table::TokenTable;
use crate::vocabulary::TokenKind;

/// Names that published models end turns or texts with.
pub(super) const NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// The ids that end a generation, ascending. A name counts only where it is a special token: `</s>` is also HTML.
pub(super) fn ids(table: &TokenTable, named: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let is_special = |id: u32| matches!(table.kind(id), TokenKind::Control | TokenKind::UserDefined);
    let find = |name: &str| (0..table.len() as u32).find(|&id| table.text(id) == name && is_special(id));
    let mut ids: Vec<u32> =
        (0..table.len() as u32).filter(|&id| is_special(id) && NAMES.contains(&table.text(id))).chain(named).collect();
    // Harmony-like models close every message with <|end|>, and the turn with one of these.
    let closes_messages = find("<|return|>").is_some() && find("<|call|>").is_some()
        || find("<|calls|>").is_some() && find("<|flush|>").is_some();
    if closes_messages {
        ids.retain(|&id| table.text(id) != "<|end|>");
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use TokenKind::{Control, Normal};

    fn check(tokens: &[(&str, TokenKind)], named: &[u32], expect: &[u32]) {
        let texts = tokens.iter().map(|token| token.0.to_owned()).collect();
        let table = TokenTable::new(texts, tokens.iter().map(|token| token.1).collect(), |_, _| ());
        assert_eq!(ids(&table, named.iter().copied()), expect);
    }

    #[test]
    fn known_names_count_when_they_are_special() {
        check(&[("a", Normal), ("<|im_end|>", Control), ("</s>", Normal)], &[], &[1]);
        check(&[("a", Normal), ("stop", Control)], &[1], &[1]);
    }

    #[test]
    fn a_message_end_is_not_a_turn_end_in_harmony() {
        check(&[("<|end|>", Control)], &[], &[0]);
        check(&[("<|end|>", Control), ("<|return|>", Control), ("<|call|>", Control)], &[], &[1, 2]);
    }
}
