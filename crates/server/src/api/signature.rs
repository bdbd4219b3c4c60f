//! Proof that this server wrote what a client sends back as the model's own reasoning.

use std::fmt;
use std::sync::OnceLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;

/// Bytes of a signature.
const BYTES: usize = 32;

/// The signature of a text. It holds for as long as the server runs.
#[derive(Debug)]
pub(crate) struct Signature(blake3::Hash);

impl Signature {
    pub(crate) fn of(text: &str) -> Self {
        Self(blake3::keyed_hash(key(), text.as_bytes()))
    }

    /// Compares in constant time.
    pub(crate) fn matches(&self, given: &str) -> bool {
        let given = BASE64_STANDARD_NO_PAD.decode(given).ok().and_then(|bytes| <[u8; BYTES]>::try_from(bytes).ok());
        given.is_some_and(|given| self.0 == given)
    }

    /// Returns a text with its signature, for APIs that send both as one.
    pub(crate) fn seal(text: &str) -> String {
        BASE64_STANDARD_NO_PAD.encode([Self::of(text).0.as_bytes(), text.as_bytes()].concat())
    }

    /// Returns the text of what was sealed here; `None` of anything else.
    pub(crate) fn unseal(sealed: &str) -> Option<String> {
        let bytes = BASE64_STANDARD_NO_PAD.decode(sealed).ok()?;
        let (signature, text) = bytes.split_first_chunk::<BYTES>()?;
        let text = std::str::from_utf8(text).ok()?;
        (Self::of(text).0 == *signature).then(|| text.to_owned())
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD_NO_PAD.encode(self.0.as_bytes()))
    }
}

fn key() -> &'static [u8; 32] {
    static KEY: OnceLock<[u8; 32]> = OnceLock::new();
    KEY.get_or_init(|| {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the system has random numbers");
        key
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_here_is_unsealed() {
        let sealed = Signature::seal("Hm.");
        assert_eq!(Signature::unseal(&sealed).as_deref(), Some("Hm."));
        let forged = BASE64_STANDARD_NO_PAD.encode([[0; BYTES].as_slice(), b"Hm."].concat());
        for other in ["", "?", "SG0u", &forged, &sealed[1..]] {
            assert_eq!(Signature::unseal(other), None, "{other}");
        }
    }
}
