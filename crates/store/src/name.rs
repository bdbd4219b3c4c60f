//! Names of models, checked once so that nothing behind them has to think about paths.

use std::fmt;
use std::path::Path;

use crate::error::StoreError;

/// A name under which a model is stored, such as `smollm2`, `qwen2.5-coder:0.5b`, `qwen/some-model@v2` or
/// `hf.co/owner/some-model:q4_k_m`.
///
/// Names are lower case, since some file systems cannot tell `Foo` from `foo`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelName(String);

impl ModelName {
    pub const LENGTH_MAX: usize = 128;

    pub fn parse(text: &str) -> Result<ModelName, StoreError> {
        match fault_of(text) {
            None => Ok(ModelName(text.to_ascii_lowercase())),
            Some(why) => Err(StoreError::BadName {
                // Cut and escaped: it may be megabytes of control characters.
                name: text.chars().take(60).collect::<String>().escape_debug().to_string(),
                why,
            }),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// One path component, different for different names: `%` is not allowed in a name, so escapes are unambiguous.
    pub(crate) fn folder_name(&self) -> String {
        self.0.replace('/', "%2f").replace(':', "%3a")
    }

    /// The inverse; `None` for folders that are not ours.
    pub(crate) fn from_folder(folder: &Path) -> Option<ModelName> {
        let folder = folder.file_name()?.to_str()?;
        let name = ModelName::parse(&folder.replace("%2f", "/").replace("%3a", ":")).ok()?;
        (name.folder_name() == folder).then_some(name)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn fault_of(text: &str) -> Option<&'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-:@/".contains(c);
    if text.is_empty() {
        Some("it is empty")
    } else if text.len() > ModelName::LENGTH_MAX {
        Some("it is longer than 128 bytes")
    } else if !text.chars().all(allowed) {
        Some("only letters, digits and . _ - : @ / are allowed")
    } else if text.contains("..") {
        Some("it contains `..`")
    } else if text.matches('/').count() > 2 {
        Some("it contains more than two `/`")
    } else if !text.split('/').all(|part| part.starts_with(|c: char| c.is_ascii_alphanumeric())) {
        Some("each part must begin with a letter or a digit")
    } else if text.ends_with('.') {
        Some("it ends with a dot")
    } else if text.to_ascii_lowercase().starts_with("hf:") {
        Some("`hf:` is reserved for hub addresses")
    } else {
        None
    }
}

/// `text` with everything replaced that a name's part cannot hold, for names made from files.
pub(crate) fn plain(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    let plain: String = text.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    plain.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// Whether `file` may be joined to one of our folders without leaving it or hiding our own files.
pub(crate) fn is_safe_file_name(file: &str) -> bool {
    !file.is_empty()
        && file.len() <= 200
        && !file.starts_with('.')
        && !file.contains(['/', '\\', ':'])
        && !file.chars().any(char::is_control)
        && !file.eq_ignore_ascii_case(crate::manifest::FILE_NAME)
}

/// The same for a file that may lie in a folder within ours.
pub(crate) fn is_safe_file_path(path: &str) -> bool {
    path.len() <= 200 && path.split('/').all(is_safe_file_name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_names_pass_and_are_lower_cased() {
        for name in ["smollm2", "qwen2.5-coder:0.5b", "owner/model", "hf.co/a/b:q4", "a/b@main", "X"] {
            assert_eq!(ModelName::parse(name).unwrap().as_str(), name.to_lowercase());
        }
    }

    #[test]
    fn names_that_could_leave_the_store_are_refused() {
        let long = "a".repeat(129);
        let hostile = [
            "",
            ".",
            "..",
            "../x",
            "a/..",
            "a/../b",
            "/etc/passwd",
            "a//b",
            "a/b/c/d",
            ".locks",
            "a/.hidden",
            "a\\b",
            "a\0b",
            "a\nb",
            "a b",
            "ä",
            "C:\\x",
            "%2e%2e",
            "x.",
            "hf:a/b",
            &long,
        ];
        for name in hostile {
            assert!(ModelName::parse(name).is_err(), "{name:?} was accepted");
        }
    }

    #[test]
    fn folder_names_are_single_components_and_distinct() {
        let folders: std::collections::HashSet<String> =
            ["a/b", "a:b", "a-b", "a@b", "a_b"].map(|name| ModelName::parse(name).unwrap().folder_name()).into();
        assert_eq!(folders.len(), 5);
        assert!(folders.iter().all(|folder| !folder.contains(['/', ':'])));
    }

    proptest! {
        #[test]
        fn every_accepted_name_is_one_path_component_and_comes_back_from_it(text in "[a-zA-Z0-9._:@/%\\\\ -]{0,20}|.{0,20}") {
            if let Ok(name) = ModelName::parse(&text) {
                let folder = Path::new("/home").join(name.folder_name());
                prop_assert_eq!(folder.parent(), Some(Path::new("/home")));
                prop_assert!(!name.folder_name().starts_with('.'));
                prop_assert_eq!(ModelName::from_folder(&folder), Some(name));
            }
        }
    }

    #[test]
    fn file_names_with_separators_or_ours_are_unsafe() {
        for file in ["", "../x", "a/b", "a\\b", ".part", "manifest.json", "a\n", "c:x"] {
            assert!(!is_safe_file_name(file), "{file:?}");
        }
        assert!(is_safe_file_name("SmolLM2-135M-Instruct.Q4_1.gguf"));
        for path in ["", "/a", "a/", "a//b", "../a", "a/..", "a/./b", "a/manifest.json", "a\\b/c"] {
            assert!(!is_safe_file_path(path), "{path:?}");
        }
        assert!(is_safe_file_path("1_Pooling/config.json"));
    }
}
