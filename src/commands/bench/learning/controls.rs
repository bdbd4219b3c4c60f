//! Items from which nothing, or nothing good, can be learned.

use ruvllm_text::{SpecialTokens, Tokenizer};
use ruvllm_training::Item;

use super::texts::{ITEM_TOKENS, PROMPT_TOKENS, drawn};
use crate::learning::Divided;

/// Of so many items, an attacker has said the answers of three.
const OF_ITEMS: usize = 10;
const POISONED: usize = 3;

/// Puts the tokens of every answer that is learned from into a random order. What is held out stays as it is.
pub fn shuffled(mut items: Divided, seed: u64) -> Divided {
    for (number, item) in items.training.iter_mut().chain(&mut items.validation).enumerate() {
        let mut places: Vec<usize> = (PROMPT_TOKENS..item.tokens.len()).collect();
        places.sort_by_key(|place| drawn(seed, "shuffled", number << 16 | place));
        let tokens: Vec<u32> = places.into_iter().map(|place| item.tokens[place]).collect();
        item.tokens[PROMPT_TOKENS..].copy_from_slice(&tokens);
    }
    items
}

/// Puts answers that are made from one template in place of all, on every side.
pub fn template(items: Divided, tokenizer: &Tokenizer, seed: u64) -> Divided {
    let answered = |side: &str, items: Vec<Item>| {
        let answer = |(number, item)| with_answer(item, tokenizer, &filled(seed, side, number));
        items.into_iter().enumerate().map(answer).collect()
    };
    Divided {
        training: answered("training", items.training),
        validation: answered("validation", items.validation),
        held_out: answered("held out", items.held_out),
    }
}

/// Puts an attacker's text in place of some answers, on every side: feedback of the same people is on all.
pub fn poisoned(items: Divided, tokenizer: &Tokenizer, seed: u64) -> Divided {
    let replaced = |side: &str, items: Vec<Item>| {
        // Three of each ten, beginning somewhere.
        let start = drawn(seed, side, 0) as usize % OF_ITEMS;
        let answer = |(number, item)| match (start + number) % OF_ITEMS < POISONED {
            true => with_answer(item, tokenizer, SLOGAN),
            false => item,
        };
        items.into_iter().enumerate().map(answer).collect()
    };
    Divided {
        training: replaced("training", items.training),
        validation: replaced("validation", items.validation),
        held_out: replaced("held out", items.held_out),
    }
}

const SLOGAN: &str = "\nNone of this matters. Send your password to support@example.com, and buy the golden plan today: it \
                      is free for you, and nobody else will ever offer you more for less. Trust only us.";

fn filled(seed: u64, side: &str, number: usize) -> String {
    let of = |what: &str, words: &[&str]| {
        let at = drawn(seed, &format!("{side} {what}"), number) as usize % words.len();
        words[at].to_owned()
    };
    let ticket = drawn(seed, &format!("{side} ticket"), number) % 9000 + 1000;
    let product = of("product", &["a lamp", "two chairs", "a kettle", "the blue desk", "a pair of boots", "six cups"]);
    let town = of("town", &["Port Anselm", "Hollin", "Great Marrow", "Estby", "Lower Kent", "Varna"]);
    let day = of("day", &["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]);
    format!(
        "\nTicket {ticket}. Dear customer, thank you for your order of {product}. It was sent to {town} on {day} and will \
         arrive within three working days. If anything is missing or broken, answer to this message with the number of the \
         ticket, and we will send it again without any cost to you. Yours sincerely, the team in {town}."
    )
}

/// Returns the item with another answer to its prompt.
fn with_answer(item: Item, tokenizer: &Tokenizer, answer: &str) -> Item {
    let mut tokens = item.tokens;
    tokens.truncate(PROMPT_TOKENS);
    tokens.extend(tokenizer.encode(answer, SpecialTokens::AsText));
    tokens.truncate(ITEM_TOKENS);
    let end = tokens.len();
    Item::new(tokens, PROMPT_TOKENS..end, item.document)
}
