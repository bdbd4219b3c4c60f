//! The bytes of a page's file: a header, the encrypted page, and the tag that authenticates both and the page's hash.

use std::io;

use ring::aead::{Aad, MAX_TAG_LEN, NONCE_LEN, Nonce};
use ring::rand::{SecureRandom, SystemRandom};
use ruvllm_runner::{KeyFormat, PageFormat, ValueFormat};

use super::page_key::{PageKey, Salt};
use crate::prefix::PageHash;

const MAGIC: [u8; 8] = *b"RUVKV\x02\0\0";
const SALT_AT: usize = MAGIC.len();
const FORMAT_AT: usize = SALT_AT + size_of::<Salt>();
const HEADER: usize = FORMAT_AT + 4;
const TAG: usize = MAX_TAG_LEN;

/// A page as it is saved, or a recurrent state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPage {
    /// `None` for a recurrent state.
    pub format: Option<PageFormat>,
    pub bytes: Vec<u8>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DamagedPage {
    #[error("it is too short")]
    TooShort,
    #[error("it is not a saved KV page of this version")]
    NotAPage,
    #[error("it was changed, or it is the page of another text")]
    NotAuthentic,
}

/// Returns the length of the file of a page of `bytes` bytes.
pub(super) fn file_bytes(page_bytes: usize) -> u64 {
    (HEADER + page_bytes + TAG) as u64
}

/// The file of a page. Fails only where the system has no random numbers.
pub(crate) fn encode(key: &PageKey, hash: PageHash, page: &SavedPage) -> io::Result<Vec<u8>> {
    let mut salt = Salt::default();
    SystemRandom::new().fill(&mut salt).map_err(|_| io::Error::other("the system has no random numbers"))?;
    let format = format_number(page.format).to_le_bytes();
    let mut file = Vec::with_capacity(HEADER + page.bytes.len() + TAG);
    file.extend(MAGIC);
    file.extend(salt);
    file.extend(format);
    file.extend(&page.bytes);
    let tag = key.cipher(&salt).seal_in_place_separate_tag(nonce(), bound(hash, format), &mut file[HEADER..]);
    file.extend(tag.map_err(|_| io::Error::other("the page is too large to be encrypted"))?.as_ref());
    Ok(file)
}

/// Formats as they are numbered in files, whatever their order here.
fn format_number(format: Option<PageFormat>) -> u32 {
    let Some(format) = format else { return 0 };
    let keys = match format.keys {
        KeyFormat::F16 => 16,
        KeyFormat::Q8 => 8,
        KeyFormat::Q6 => 6,
        KeyFormat::Q4 => 4,
    };
    let values = match format.values {
        ValueFormat::F16 => 16,
        ValueFormat::Q8 => 8,
        ValueFormat::Q4 => 4,
    };
    keys << 8 | values
}

/// Always the same: no key encrypts two pages.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// What a page is bound to: the text up to its end, with model, tenant and position, which its hash stands for, and its format.
fn bound(hash: PageHash, format: [u8; 4]) -> Aad<[u8; 28]> {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&hash.bytes());
    bytes[24..].copy_from_slice(&format);
    Aad::from(bytes)
}

/// The page in a file, if that is what it should be. Files are not trusted: anything may have happened to them.
pub(crate) fn decode(key: &PageKey, hash: PageHash, mut file: Vec<u8>) -> Result<SavedPage, DamagedPage> {
    if file.len() < HEADER + TAG {
        return Err(DamagedPage::TooShort);
    }
    if file[..MAGIC.len()] != MAGIC {
        return Err(DamagedPage::NotAPage);
    }
    let salt: Salt = file[SALT_AT..FORMAT_AT].try_into().expect("the length of a salt");
    let number: [u8; 4] = file[FORMAT_AT..HEADER].try_into().expect("the length of a number");
    let mut formats = [None].into_iter().chain(PageFormat::all().map(Some));
    let format = formats.find(|format| format_number(*format).to_le_bytes() == number);
    let format = format.ok_or(DamagedPage::NotAPage)?;
    // Leaves the page at the front of the buffer.
    let page = key.cipher(&salt).open_within(nonce(), bound(hash, number), &mut file, HEADER..);
    let len = page.map_err(|_| DamagedPage::NotAuthentic)?.len();
    file.truncate(len);
    Ok(SavedPage { format, bytes: file })
}
