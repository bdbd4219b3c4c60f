//! Hides passwords in values that are shown.

const HIDDEN: &str = "***";
/// How a password starts in a connection string, on its own or in the query of a URL.
const PARAMETER: &str = "password=";

/// Returns the text without its passwords: `postgres://ann:***@host/db`, `host=db password=***`.
pub fn redacted(text: &str) -> String {
    without_parameters(&without_user_info(text))
}

fn without_user_info(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    // An unencoded password may contain any of the characters that end the host.
    let Some((user_info, host)) = rest.rsplit_once('@') else { return text.to_owned() };
    match user_info.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:{HIDDEN}@{host}"),
        None => text.to_owned(),
    }
}

fn without_parameters(text: &str) -> String {
    let Some(at) = text.to_ascii_lowercase().find(PARAMETER) else { return text.to_owned() };
    let (before, value) = text.split_at(at + PARAMETER.len());
    let is_quoted = value.starts_with('\'');
    let end = if is_quoted {
        let closing = value.char_indices().skip(1).find(|(at, c)| *c == '\'' && !value[..*at].ends_with('\\'));
        closing.map_or(value.len(), |(at, _)| at + 1)
    } else {
        value.find(|c: char| c.is_whitespace() || c == '&').unwrap_or(value.len())
    };
    format!("{before}{HIDDEN}{}", without_parameters(&value[end..]))
}

#[cfg(test)]
mod tests {
    use super::redacted;

    #[test]
    fn passwords_are_hidden_however_they_are_written() {
        for (written, shown) in [
            ("postgres://ann:secret@host/db", "postgres://ann:***@host/db"),
            ("postgres://ann:sec/r:e@t@host/db?sslmode=require", "postgres://ann:***@host/db?sslmode=require"),
            ("postgres://ann@host/db?password=secret&a=b", "postgres://ann@host/db?password=***&a=b"),
            ("host=db user=ann password=secret dbname=x", "host=db user=ann password=*** dbname=x"),
            (r"host=db PASSWORD='se cr\'et' dbname=x", "host=db PASSWORD=*** dbname=x"),
            ("https://collector.example/v1/traces", "https://collector.example/v1/traces"),
            ("plain", "plain"),
        ] {
            assert_eq!(redacted(written), shown);
        }
    }
}
