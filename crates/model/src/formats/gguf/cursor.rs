//! Reading forward through untrusted bytes: every read is checked against what is really there.

use super::error::{Damage, Fault};

/// Longer strings are refused even where the file has the bytes for them.
pub(super) const STRING_BYTES_MAX: u64 = 1 << 31;

#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    pub fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    /// A fault at the next byte.
    pub fn damage(&self, fault: Fault) -> Damage {
        Self::damage_at(self.position, fault)
    }

    pub fn damage_at(position: usize, fault: Fault) -> Damage {
        Damage { offset: position as u64, fault }
    }

    pub fn take(&mut self, count: u64) -> Result<&'a [u8], Damage> {
        let rest = &self.bytes[self.position..];
        let Some(taken) = usize::try_from(count).ok().and_then(|count| rest.get(..count)) else {
            return Err(self.damage(Fault::Truncated { needed: count, remaining: self.remaining() }));
        };
        self.position += taken.len();
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let rest = &self.bytes[self.position..];
        let Some(taken) = rest.first_chunk::<N>() else {
            return Err(self.damage(Fault::Truncated { needed: N as u64, remaining: self.remaining() }));
        };
        self.position += N;
        Ok(*taken)
    }

    pub fn u32(&mut self) -> Result<u32, Damage> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Damage> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn bool(&mut self) -> Result<bool, Damage> {
        let start = self.position;
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [byte] => Err(Self::damage_at(start, Fault::Bool { byte })),
        }
    }

    /// A string's bytes: its length as a u64, then that many bytes.
    pub fn string_bytes(&mut self) -> Result<&'a [u8], Damage> {
        let start = self.position;
        let length = self.u64()?;
        if length > STRING_BYTES_MAX {
            return Err(Self::damage_at(start, Fault::StringTooLong { length, max: STRING_BYTES_MAX }));
        }
        if length > self.remaining() {
            return Err(Self::damage_at(start, Fault::StringPastEnd { length, remaining: self.remaining() }));
        }
        self.take(length)
    }

    pub fn string(&mut self) -> Result<&'a str, Damage> {
        let bytes = self.string_bytes()?;
        str::from_utf8(bytes).map_err(|error| {
            let text_start = self.position - bytes.len();
            Self::damage_at(text_start + error.valid_up_to(), Fault::Utf8)
        })
    }

    /// A key or a tensor's name: a string of 1 to `bytes_max` bytes.
    pub fn name(&mut self, bytes_max: u64) -> Result<&'a str, Damage> {
        let start = self.position;
        let name = self.string()?;
        let length = name.len() as u64;
        if !(1..=bytes_max).contains(&length) {
            return Err(Self::damage_at(start, Fault::NameLength { length, max: bytes_max }));
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_read_does_not_move_the_cursor() {
        let mut cursor = Cursor::new(&[1, 2, 3]);
        let damage = cursor.u32().unwrap_err();
        assert_eq!(damage, Damage { offset: 0, fault: Fault::Truncated { needed: 4, remaining: 3 } });
        assert_eq!(cursor.take(3).unwrap(), [1, 2, 3]);
        assert_eq!(cursor.remaining(), 0);
    }

    #[test]
    fn a_count_beyond_the_address_space_is_a_truncation() {
        let damage = Cursor::new(&[0; 8]).take(u64::MAX).unwrap_err();
        assert_eq!(damage.fault, Fault::Truncated { needed: u64::MAX, remaining: 8 });
    }

    #[test]
    fn invalid_utf8_is_reported_at_its_byte() {
        let mut bytes = 3u64.to_le_bytes().to_vec();
        bytes.extend(b"ab\xff");
        assert_eq!(Cursor::new(&bytes).string().unwrap_err(), Damage { offset: 10, fault: Fault::Utf8 });
    }
}
