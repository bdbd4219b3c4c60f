//! Sizes in bytes on the command line: `512M`, `2G`.

/// Parses a whole number with an optional unit; K, M, G and T are powers of 1,024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "expected a whole number and a unit, such as 512M".to_owned())?;
    if number == 0 {
        return Err("must be greater than zero, such as 512M".to_owned());
    }
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        unit => return Err(format!("unknown unit {unit:?}; use K, M, G or T")),
    };
    number.checked_shl(shift).filter(|bytes| bytes >> shift == number).ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("2gib"), Ok(2 << 30));
        assert_eq!(parse_size("123"), Ok(123));
        for wrong in ["", "M", "banana", "0", "0G", "12X", "-1G", "1.5G", "99999999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
