//! Names of end users, as clients send them.

use crate::error::{MemoryError, Result};

/// Clients put ids into it, some of them long.
const CHARS_MAX: usize = 512;

/// Checks that a name can be stored: whoever is named must be found by it again.
pub fn check_user(name: &str) -> Result<()> {
    let problem = if name.trim().is_empty() {
        "the name of a user is empty; leave it out".to_owned()
    } else if name.chars().count() > CHARS_MAX {
        format!("the name of a user has a maximum of {CHARS_MAX} characters")
    } else if name.chars().any(char::is_control) {
        "the name of a user cannot have control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(MemoryError::invalid("user", problem))
}
