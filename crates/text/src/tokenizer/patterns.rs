//! The table of pre-tokenizers by the names that GGUF gives them (`tokenizer.ggml.pre`).
//!
//! The patterns are facts about how published models were trained. Where llama.cpp approximates one for its regex
//! engine, this table has the model's original.

/// One cut of a pre-tokenizer.
#[derive(Debug)]
pub(super) enum Pattern {
    /// Exactly what the expression matches.
    Plain(&'static str),
    /// The expression for words, then whitespace that leaves its last character to the next word.
    WordsThenWhitespace(&'static str),
}

/// What the tokens of a family are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    Bytes,
    /// Characters, with a visible space and bytes only where a character has no token.
    Characters,
}

#[derive(Debug)]
pub(super) struct Family {
    names: &'static [&'static str],
    pub splits: &'static [Pattern],
    pub spelling: Spelling,
    pub takes_whole_words: bool,
    pub adds_bos: bool,
}

use Pattern::{Plain, WordsThenWhitespace};

/// What most families are; each entry below states only how it differs.
const USUAL: Family =
    Family { names: &[], splits: &[], spelling: Spelling::Bytes, takes_whole_words: false, adds_bos: false };

const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
const GPT2: Pattern = WordsThenWhitespace(GPT2_WORDS);
const SINGLE_DIGITS: Pattern = Plain(r"\p{N}");
const DIGIT_TRIPLES: Pattern = Plain(r"\p{N}{1,3}");
const ASCII_DIGIT_TRIPLES: Pattern = Plain("[0-9][0-9][0-9]");
const LINES: Pattern = Plain(r"[^\n]+|\n+");

/// Words with contractions in any case and one leading character; the number part and what follows differ.
macro_rules! llama3_words {
    ($numbers:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        )
    };
}

/// Words divided where the case changes from lower to upper, with optional contractions at their end.
macro_rules! cased_words {
    ($contractions:literal, $numbers:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $contractions,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $contractions,
            "|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
        )
    };
}

const LLAMA3: Pattern = WordsThenWhitespace(llama3_words!(r"\p{N}{1,3}"));
const QWEN2: Pattern = WordsThenWhitespace(llama3_words!(r"\p{N}"));
const GPT4O: Pattern = WordsThenWhitespace(cased_words!("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"));
const CHINESE_JAPANESE: Pattern = Plain(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+");
const DEEPSEEK3_WORDS: Pattern = WordsThenWhitespace(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"##,
);
/// Letters that have case, as DeepSeek's first tokenizer enumerates them.
const DEEPSEEK_LETTERS: Pattern = Plain(concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}",
    r"\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}",
    r"\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}",
    r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}",
    r"\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}",
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}",
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}",
    r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}",
    r"\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}",
    r"\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}",
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}",
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
));
const DEEPSEEK_EAST_ASIAN: Pattern = Plain(r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+");
const BLOOM: Pattern = Plain(r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+");

const FAMILIES: &[Family] = &[
    Family {
        names: &["default"],
        splits: &[Plain(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, Plain(r"\p{N}+"), ASCII_DIGIT_TRIPLES],
        ..USUAL
    },
    Family {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        splits: &[GPT2],
        ..USUAL
    },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        splits: &[SINGLE_DIGITS, GPT2],
        ..USUAL
    },
    Family {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        splits: &[LLAMA3],
        takes_whole_words: true,
        adds_bos: true,
        ..USUAL
    },
    Family { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], splits: &[LLAMA3], ..USUAL },
    Family { names: &["glm4", "glm5"], splits: &[LLAMA3], takes_whole_words: true, ..USUAL },
    Family {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "stablelm2",
            "megrez",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        splits: &[QWEN2],
        ..USUAL
    },
    Family {
        names: &["qwen35"],
        splits: &[WordsThenWhitespace(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
        )],
        ..USUAL
    },
    Family { names: &["laguna"], splits: &[LINES, QWEN2], ..USUAL },
    Family {
        names: &["minicpm5"],
        splits: &[DIGIT_TRIPLES, WordsThenWhitespace(llama3_words!(r"\p{N}+"))],
        takes_whole_words: true,
        ..USUAL
    },
    Family {
        names: &["ufakzeka"],
        splits: &[WordsThenWhitespace(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+")],
        ..USUAL
    },
    Family {
        names: &["seed-coder"],
        splits: &[WordsThenWhitespace(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+",
        )],
        ..USUAL
    },
    Family {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        splits: &[WordsThenWhitespace(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]",
        )],
        ..USUAL
    },
    Family {
        names: &["exaone-moe"],
        splits: &[WordsThenWhitespace(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]",
        )],
        ..USUAL
    },
    Family {
        names: &["deepseek-llm"],
        splits: &[
            Plain(r"[\r\n]"),
            DEEPSEEK_LETTERS,
            Plain(r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"),
            Plain(r"\s+$"),
            DEEPSEEK_EAST_ASIAN,
            Plain(r"\p{N}+"),
        ],
        ..USUAL
    },
    Family {
        names: &["deepseek-coder"],
        splits: &[Plain(r"[\r\n]"), Plain(r"\s?\p{L}+"), Plain(r"\s?\p{P}+"), DEEPSEEK_EAST_ASIAN, SINGLE_DIGITS],
        ..USUAL
    },
    Family {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        splits: &[DIGIT_TRIPLES, CHINESE_JAPANESE, DEEPSEEK3_WORDS],
        ..USUAL
    },
    Family {
        names: &["youtu"],
        splits: &[
            Plain(
                r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
            ),
            WordsThenWhitespace(cased_words!("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}")),
        ],
        takes_whole_words: true,
        ..USUAL
    },
    Family { names: &["falcon"], splits: &[Plain(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, ASCII_DIGIT_TRIPLES], ..USUAL },
    Family { names: &["poro-chat", "bloom", "gpt3-finnish"], splits: &[BLOOM], ..USUAL },
    Family { names: &["viking"], splits: &[BLOOM, SINGLE_DIGITS], ..USUAL },
    Family {
        names: &["tekken"],
        splits: &[WordsThenWhitespace(cased_words!("", r"\p{N}"))],
        takes_whole_words: true,
        adds_bos: true,
        ..USUAL
    },
    Family { names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], splits: &[GPT4O], ..USUAL },
    Family { names: &["granite-embed-multi-97m"], splits: &[GPT4O], takes_whole_words: true, ..USUAL },
    Family {
        names: &["chameleon"],
        splits: &[
            Plain("<sentinel:[0-9]+>"),
            Plain("IMGIMG[A-I]{1,4}Z"),
            Plain(r"[\t\n]|    |  "),
            SINGLE_DIGITS,
            Plain(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ],
        adds_bos: true,
        ..USUAL
    },
    Family {
        names: &["gemma4", "granite-embed-multi-311m"],
        splits: &[LINES],
        spelling: Spelling::Characters,
        adds_bos: true,
        ..USUAL
    },
];

pub(super) fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.names.contains(&name))
}

/// Every known name, for error messages and tests.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.names).copied()
}
