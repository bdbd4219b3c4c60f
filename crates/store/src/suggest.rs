//! The known name nearest to a mistyped one.

/// `None` when nothing is near enough to be what was meant: more than a third of the letters would have to change.
pub fn closest<'a>(wanted: &str, known: &[&'a str]) -> Option<&'a str> {
    // Longer than any name: not a typing error, and not worth quadratic time.
    if wanted.len() > 128 {
        return None;
    }
    let wanted = wanted.to_lowercase();
    let begins = |name: &&&str| wanted.len() >= 3 && name.starts_with(&wanted);
    if let Some(name) = known.iter().find(begins) {
        return Some(name);
    }
    known
        .iter()
        .map(|name| (edit_distance(&wanted, name), *name))
        .min()
        .filter(|(distance, name)| *distance <= (name.chars().count() / 3).max(1))
        .map(|(_, name)| name)
}

/// Returns the known name that was meant by one with a wrong, missing or superfluous letter. Short names are left alone:
/// they differ by a letter from others that mean something else.
pub fn misspelt<'a>(wanted: &str, known: &[&'a str]) -> Option<&'a str> {
    const LETTERS_MIN: usize = 6;
    let is_near = |name: &&&str| name.len().abs_diff(wanted.len()) <= 1 && edit_distance(wanted, name) == 1;
    known.iter().filter(|name| name.len() >= LETTERS_MIN && wanted.len() >= LETTERS_MIN).find(is_near).copied()
}

/// Insertions, deletions and substitutions that turn one text into the other, one row of the table at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_their_name_and_nonsense_finds_none() {
        let known = ["smollm2", "qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b"];
        for (typed, meant) in [
            ("smolm2", Some("smollm2")),
            ("SMOLLM", Some("smollm2")),
            ("qwen2.5-coder-0.5b", Some("qwen2.5-coder:0.5b")),
            ("qwen", Some("qwen2.5-coder:0.5b")),
            ("llama3", None),
            ("", None),
        ] {
            assert_eq!(closest(typed, &known), meant, "{typed}");
        }
    }
}
