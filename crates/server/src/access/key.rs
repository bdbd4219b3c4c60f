//! A key and its hash.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const PREFIX: &str = "ruv_";
const SECRET_BYTES: usize = 32;
/// Longer texts are not hashed: a key is much shorter.
const LENGTH_MAX: usize = 256;

/// A new key. Its text is shown once and stored nowhere.
pub struct NewKey {
    text: String,
}

// Hidden: keys do not belong in logs.
impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewKey")
    }
}

impl NewKey {
    /// Hash of the text.
    pub(super) const LENGTH: usize = PREFIX.len() + 2 * SECRET_BYTES;

    /// Fails if the system provides no random numbers.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret)?;
        Ok(Self { text: format!("{PREFIX}{}", blake3::Hash::from_bytes(secret).to_hex()) })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn hash(&self) -> KeyHash {
        KeyHash(*key_hasher().update(self.text.as_bytes()).finalize().as_bytes())
    }
}

/// The stored hash of a key.
///
/// A fast hash is enough, unlike for passwords: a key has 256 random bits, so it cannot be guessed from its hash. Keys
/// are looked up by their hash. The time of a look-up may reveal how much of a hash matches, which is of no use: the
/// sender of a key cannot choose its hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Returns `None` for texts that cannot be a key.
    pub fn of(text: &str) -> Option<Self> {
        let is_plausible = text.starts_with(PREFIX) && text.len() <= LENGTH_MAX;
        is_plausible.then(|| Self(*key_hasher().update(text.as_bytes()).finalize().as_bytes()))
    }

    pub fn to_hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

fn key_hasher() -> blake3::Hasher {
    blake3::Hasher::new_derive_key("ruvllm 2026 api key")
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex()[..8])
    }
}

impl Serialize for KeyHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(&text).map_err(|_| de::Error::custom("a hash has 64 hexadecimal digits"))?;
        Ok(Self(*hash.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_text_and_no_two_are_alike() {
        let (one, other) = (NewKey::random().unwrap(), NewKey::random().unwrap());
        assert_eq!((one.text().len(), NewKey::LENGTH), (4 + 64, 4 + 64));
        assert_eq!(KeyHash::of(one.text()), Some(one.hash()));
        assert_ne!(one.hash(), other.hash());
        assert!(!format!("{one:?} {:?}", one.hash()).contains(&one.text()[4..]));
    }

    #[test]
    fn what_cannot_be_a_key_is_not_hashed() {
        assert_eq!(KeyHash::of("sk-abc"), None);
        assert_eq!(KeyHash::of(&format!("ruv_{}", "0".repeat(1000))), None);
    }
}
