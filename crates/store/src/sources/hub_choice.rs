//! Which files of a repository make a model that this machine can run, as far as names and sizes tell.

use super::MODEL_CONFIG;
use super::hub_repo::HubEntry;

/// Types of GGUF files by the end of their names, the best first for its size.
const TYPES: [&str; 20] = [
    "q4_k_m", "q4_k_xl", "q5_k_m", "q4_k_s", "q5_k_s", "iq4_xs", "iq4_nl", "mxfp4", "q4_0", "q4_1", "q5_0", "q5_1",
    "q6_k", "q8_0", "q3_k_m", "q3_k_l", "q3_k_s", "q2_k", "bf16", "f16",
];
/// Parts of files, what goes with a model for images, and types that the engine does not read.
const NO_MODELS: [&str; 8] = ["-of-", "mmproj", "imatrix", "iq1_", "iq2_", "iq3_", "tq1_0", "tq2_0"];
/// What belongs to safetensors, where it is there.
const BESIDE: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    INDEX,
];
const INDEX: &str = "model.safetensors.index.json";
/// Weights of 16 bits are so many times as large as in q4_k_m, which they can be quantized to at load.
const QUANTIZED: u64 = 3;

/// Files of a model that were chosen among others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The main file first.
    pub(crate) files: Vec<HubEntry>,
    pub(crate) why: String,
    /// What could have been chosen instead, the best first.
    pub(crate) others: Vec<String>,
}

/// Chooses a GGUF file that is not larger than `file_bytes_max`, the best first, or else safetensors with all that belongs
/// to them. The error says why nothing can be chosen.
pub(crate) fn choose(files: &[HubEntry], file_bytes_max: Option<u64>) -> Result<Choice, String> {
    let fits = |bytes: u64| file_bytes_max.is_none_or(|max| bytes <= max);
    let ranked = ranked(files);
    if let Some(chosen) = ranked.iter().find(|listed| fits(listed.bytes)) {
        let others = ranked.iter().filter(|listed| *listed != chosen).map(|listed| listed.file.clone()).collect();
        let why = match ranked.first() {
            Some(best) if best != chosen => {
                format!("the best that fits into memory; {} ({}) does not", best.file, size(best.bytes))
            }
            _ => "the best for its size".to_owned(),
        };
        return Ok(Choice { files: vec![(*chosen).clone()], why, others });
    }
    let weights = safetensors(files);
    let named = |name: &str| files.iter().find(|listed| listed.file == name);
    match (named(MODEL_CONFIG), weights.is_empty()) {
        (Some(config), false) => {
            let bytes = weights.iter().map(|listed| listed.bytes).fold(0, u64::saturating_add);
            let why = match ranked.is_empty() {
                true => "there is no GGUF file",
                false => "none of the GGUF files fits into memory",
            };
            let fit = match (fits(bytes), fits(bytes / QUANTIZED)) {
                (true, _) => "",
                (false, true) => ", and they fit with --quantize q4_k_m",
                (false, false) => ", and they do not fit into memory either",
            };
            let beside = BESIDE.iter().filter_map(|name| named(name));
            Ok(Choice {
                files: [config].into_iter().chain(beside).chain(weights).cloned().collect(),
                why: format!("{why}; the safetensors have {}{fit}", size(bytes)),
                others: ranked.iter().map(|listed| listed.file.clone()).collect(),
            })
        }
        _ => Err(match (ranked.iter().min_by_key(|listed| listed.bytes), file_bytes_max) {
            (Some(smallest), Some(max)) => format!(
                "none of its GGUF files fits into memory (the smallest, {}, has {}, and there is room for one of {}); name \
                 one to fetch it",
                smallest.file,
                size(smallest.bytes),
                size(max)
            ),
            _ => "it has neither GGUF files that the engine reads nor config.json with safetensors".to_owned(),
        }),
    }
}

fn size(bytes: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.into_iter().find(|(_, unit)| bytes as f64 >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit),
        None => format!("{bytes} B"),
    }
}

/// Returns the GGUF files of models, the best first.
fn ranked(files: &[HubEntry]) -> Vec<&HubEntry> {
    let mut ranked: Vec<(usize, &HubEntry)> = Vec::new();
    for listed in files {
        let name = listed.file.to_ascii_lowercase();
        let Some(stem) = name.strip_suffix(".gguf") else { continue };
        if !NO_MODELS.iter().any(|part| stem.contains(part)) {
            ranked.push((TYPES.iter().position(|kind| stem.ends_with(kind)).unwrap_or(TYPES.len()), listed));
        }
    }
    ranked.sort_by_key(|(rank, listed)| (*rank, listed.bytes));
    ranked.into_iter().map(|(_, listed)| listed).collect()
}

/// Returns the files with a model's weights: one, or those that an index names.
fn safetensors(files: &[HubEntry]) -> Vec<&HubEntry> {
    let named = |name: &str| files.iter().find(|listed| listed.file == name);
    let is_part = |listed: &&HubEntry| {
        listed.file.starts_with("model") && listed.file.ends_with(".safetensors") && listed.file != "model.safetensors"
    };
    match (named("model.safetensors"), named(INDEX)) {
        (Some(single), None) => vec![single],
        (_, Some(_)) => files.iter().filter(is_part).collect(),
        (None, None) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(files: &[(&str, u64)], max: Option<u64>) -> Result<Choice, String> {
        let listed = |(file, bytes): &(&str, u64)| HubEntry { file: (*file).to_owned(), bytes: *bytes, sha256: None };
        choose(&files.iter().map(listed).collect::<Vec<_>>(), max)
    }

    fn chosen(files: &[(&str, u64)], max: Option<u64>) -> Vec<String> {
        choice(files, max).unwrap().files.into_iter().map(|listed| listed.file).collect()
    }

    #[test]
    fn the_best_gguf_that_fits_is_chosen_and_told_with_what_else_there_is() {
        let ggufs = [
            ("m-F16.gguf", 160),
            ("m-Q8_0.gguf", 80),
            ("m.Q4_K_M.gguf", 45),
            ("m-Q3_K_S.gguf", 30),
            ("m-IQ2_XXS.gguf", 12),
            ("mmproj-F16.gguf", 9),
            ("imatrix.gguf", 2),
        ];
        assert_eq!(chosen(&ggufs, None), ["m.Q4_K_M.gguf"]);
        assert_eq!(chosen(&ggufs, Some(45)), ["m.Q4_K_M.gguf"]);
        let smaller = choice(&ggufs, Some(44)).unwrap();
        assert_eq!(smaller.files[0].file, "m-Q3_K_S.gguf");
        assert!(smaller.why.contains("m.Q4_K_M.gguf (45 B) does not"), "{}", smaller.why);
        assert_eq!(smaller.others, ["m.Q4_K_M.gguf", "m-Q8_0.gguf", "m-F16.gguf"]);
        let none = choice(&ggufs, Some(20)).unwrap_err();
        assert!(none.contains("the smallest, m-Q3_K_S.gguf, has 30 B, and there is room for one of 20 B"), "{none}");
        assert_eq!(chosen(&[("a-q8_0-00001-of-00002.gguf", 1), ("odd.gguf", 5)], None), ["odd.gguf"]);
        assert!(choice(&[("m-IQ2_XXS.gguf", 5)], Some(9)).unwrap_err().contains("neither GGUF files that"));
    }

    #[test]
    fn safetensors_come_with_all_that_belongs_to_them() {
        let folder = [
            ("README.md", 1),
            ("config.json", 1),
            ("tokenizer.json", 2),
            ("model-00001-of-00002.safetensors", 9),
            ("model-00002-of-00002.safetensors", 9),
            (INDEX, 1),
            ("consolidated.safetensors", 18),
        ];
        let expected = [
            "config.json",
            "tokenizer.json",
            INDEX,
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(chosen(&folder, None), expected);
        for (max, fit) in [(18, "have 18 B"), (6, "--quantize q4_k_m"), (5, "do not fit into memory either")] {
            let why = choice(&folder, Some(max)).unwrap().why;
            assert!(why.starts_with("there is no GGUF file") && why.ends_with(fit), "{why}");
        }
        let both = choice(&[("m-Q8_0.gguf", 8), ("model.safetensors", 15), ("config.json", 1)], Some(7)).unwrap();
        assert_eq!(both.files[1].file, "model.safetensors");
        assert_eq!((both.why.contains("none of the GGUF"), &both.others[..]), (true, &["m-Q8_0.gguf".to_owned()][..]));
        assert_eq!(
            chosen(&[("model.safetensors", 9), ("config.json", 1), ("generation_config.json", 1)], None),
            ["config.json", "generation_config.json", "model.safetensors"]
        );
        assert!(choice(&[("model.safetensors", 9)], None).unwrap_err().contains("neither GGUF"));
    }
}
