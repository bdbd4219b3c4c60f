//! Examples in the prompt: the cheapest way to the same end, without any training.

/// An item with examples before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompted {
    pub tokens: Vec<u32>,
    /// Tokens that were put before the item's targets.
    pub added: usize,
    pub examples: usize,
}

/// Puts examples before an item, the last ones that fit into `room` tokens with it, `count_max` at most.
///
/// What all begin with (in a chat format, the system's message) is there once: it ends with the last token that both
/// share and that ends a message, so that each example is a turn of one conversation.
pub fn with_examples(
    examples: &[&[u32]],
    item: &[u32],
    ends_message: impl Fn(u32) -> bool,
    (count_max, room): (usize, usize),
) -> Prompted {
    let shared = examples.iter().map(|example| shared_start(example, item)).min().unwrap_or(0);
    let start = item[..shared].iter().rposition(|token| ends_message(*token)).map_or(0, |end| end + 1);
    let mut free = room.saturating_sub(item.len());
    let mut chosen: Vec<&[u32]> = Vec::new();
    for example in examples.iter().rev().take(count_max).map(|example| &example[start..]) {
        if example.len() > free {
            break;
        }
        free -= example.len();
        chosen.push(example);
    }
    let mut tokens = item[..start].to_vec();
    chosen.iter().rev().for_each(|example| tokens.extend(*example));
    let added = tokens.len() - start;
    tokens.extend(&item[start..]);
    Prompted { tokens, added, examples: chosen.len() }
}

fn shared_start(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 9;

    #[test]
    fn examples_are_turns_of_one_conversation() {
        // A system's message, a question and its answer.
        let examples = [&[1, 2, END, 5, 3, 6, 4, END][..], &[1, 2, END, 5, 7, 6, 8, END]];
        let item = [1, 2, END, 5, 3, 3, 6, 4, END];
        let Prompted { tokens, added, .. } = with_examples(&examples, &item, |token| token == END, (10, 100));
        assert_eq!(tokens, [1, 2, END, 5, 3, 6, 4, END, 5, 7, 6, 8, END, 5, 3, 3, 6, 4, END]);
        assert_eq!(added, 10);
        let Prompted { tokens, added, .. } = with_examples(&examples, &item, |token| token == END, (1, 100));
        assert_eq!((&tokens[3..8], added), (&[5, 7, 6, 8, END][..], 5), "the last ones");
        let Prompted { tokens, added, .. } = with_examples(&examples, &item, |token| token == END, (10, 13));
        assert_eq!((&tokens[..], added), (&item[..], 0), "no room");
    }

    #[test]
    fn plain_texts_follow_each_other_as_a_whole() {
        let prompted = with_examples(&[&[1, 2], &[1, 3]], &[1, 4], |_| false, (10, 10));
        assert_eq!(prompted, Prompted { tokens: vec![1, 2, 1, 3, 1, 4], added: 4, examples: 2 });
    }
}
