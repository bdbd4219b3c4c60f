//! References to other places, joined with the address of the schema that has them (RFC 3986, section 5.2).

/// Returns the absolute form of a reference without a fragment.
pub(super) fn joined(base: &str, reference: &str) -> String {
    if reference.is_empty() {
        return base.to_owned();
    }
    if has_scheme(reference) {
        return reference.to_owned();
    }
    let (origin, path) = split(base);
    if let Some(rest) = reference.strip_prefix("//") {
        let scheme = origin.split_once("//").map_or("", |(scheme, _)| scheme);
        return format!("{scheme}//{rest}");
    }
    if reference.starts_with('/') {
        return format!("{origin}{}", without_dots(reference));
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let folder = path.rfind('/').map_or("", |end| &path[..=end]);
    let slash = if folder.is_empty() && origin.contains("//") { "/" } else { "" };
    format!("{origin}{}", without_dots(&format!("{slash}{folder}{reference}")))
}

fn has_scheme(uri: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    uri.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(is_part)
    })
}

/// Scheme and authority; path and what follows.
fn split(uri: &str) -> (&str, &str) {
    let after_scheme = if has_scheme(uri) { uri.find(':').map_or(0, |colon| colon + 1) } else { 0 };
    let rest = &uri[after_scheme..];
    let path = match rest.strip_prefix("//") {
        Some(authority) => 2 + authority.find('/').unwrap_or(authority.len()),
        None => 0,
    };
    uri.split_at(after_scheme + path)
}

fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let steps: Vec<&str> = path.split('/').collect();
    for (index, &step) in steps.iter().enumerate() {
        let is_last = index + 1 == steps.len();
        match step {
            "." | ".." => {
                if step == ".." && parts.len() > 1 {
                    parts.pop();
                }
                if is_last {
                    parts.push("");
                }
            }
            step => parts.push(step),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn references_are_joined_as_the_rfc_says() {
        for (base, reference, expected) in [
            ("http://a/b/c/d", "g", "http://a/b/c/g"),
            ("http://a/b/c/d", "./g", "http://a/b/c/g"),
            ("http://a/b/c/d", "../g", "http://a/b/g"),
            ("http://a/b/c/d", "../../../g", "http://a/g"),
            ("http://a/b/c/d", "/g/./h", "http://a/g/h"),
            ("http://a/b/c/d", "//x/y", "http://x/y"),
            ("http://a/b/c/d", "g/", "http://a/b/c/g/"),
            ("http://a/b/c/d?x=/y", "g", "http://a/b/c/g"),
            ("http://a", "g", "http://a/g"),
            ("http://a/b", "urn:x:y", "urn:x:y"),
            ("http://a/b", "", "http://a/b"),
            ("", "g.json", "g.json"),
            ("folder/a.json", "b.json", "folder/b.json"),
            ("file:///folder/a.json", "b.json", "file:///folder/b.json"),
        ] {
            assert_eq!(joined(base, reference), expected, "{base} {reference}");
        }
    }
}
