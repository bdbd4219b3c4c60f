//! Methods of texts. Positions count characters, and the guard's marks do not count.

mod search;
mod shape;
mod split;

use minijinja::formatting::{FormatStyle, format};
use minijinja::{Error, ErrorKind, Value};

use super::arguments::{bind, integer, is_true, optional_integer, optional_text, required, text};
use super::{items, wrong};
use crate::chat_template::marked_text::MarkedText;
use search::Search;
pub(in crate::chat_template) use shape::{capitalized, is_space, titled};
pub(in crate::chat_template) use split::{lines, replaced, stripped};

/// What Python's texts have; a few of these cannot be called here.
pub(super) const METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// Calls a method; an unknown one is an error of that kind.
pub(in crate::chat_template) fn call(of: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = bind(arguments, ["chars"])?;
            Ok(stripped(of, optional_text(&chars)?, name != "rstrip", name != "lstrip").into())
        }
        "split" | "rsplit" => {
            let [separator, splits] = bind(arguments, ["sep", "maxsplit"])?;
            let splits = optional_integer(&splits)?.and_then(|splits| usize::try_from(splits).ok());
            split::split(of, optional_text(&separator)?, splits, name == "rsplit")
        }
        "splitlines" => {
            let [keeps_ends] = bind(arguments, ["keepends"])?;
            Ok(lines(of, is_true(&keeps_ends)).into_iter().map(Value::from).collect())
        }
        "partition" | "rpartition" => {
            let [separator] = bind(arguments, ["sep"])?;
            split::partition(of, text(required(&separator)?)?, name == "rpartition")
        }
        "replace" => {
            let [old, new, count] = bind(arguments, ["old", "new", "count"])?;
            let count = optional_integer(&count)?.and_then(|count| usize::try_from(count).ok());
            Ok(replaced(of, text(required(&old)?)?, text(required(&new)?)?, count).into())
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = bind(arguments, ["affix"])?;
            Ok(split::without_affix(of, text(required(&affix)?)?, name == "removeprefix").into())
        }
        "join" => {
            let [parts] = bind(arguments, ["iterable"])?;
            let parts = items(required(&parts)?)?;
            let parts = parts.iter().map(text).collect::<Result<Vec<_>, _>>()?;
            Ok(parts.join(of).into())
        }
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => search(of, name, arguments),
        "center" | "ljust" | "rjust" => {
            let [width, fill] = bind(arguments, ["width", "fillchar"])?;
            let fill = optional_text(&fill)?.unwrap_or(" ");
            shape::padded(of, name, integer(required(&width)?)?, fill)
        }
        "zfill" => {
            let [width] = bind(arguments, ["width"])?;
            shape::padded(of, name, integer(required(&width)?)?, "0")
        }
        "format" => format(FormatStyle::StrFormat, of, arguments).map(Value::from),
        _ => {
            let shaped = shape::call(of, name).ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
            bind::<0>(arguments, [])?;
            Ok(shaped)
        }
    }
}

fn search(of: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [wanted, start, stop] = bind(arguments, ["sub", "start", "end"])?;
    let wanted = required(&wanted)?;
    let of = MarkedText::new(of);
    let search = Search::new(of.plain(), optional_integer(&start)?, optional_integer(&stop)?);
    let found = match name {
        "startswith" => return search.touches_any(wanted, |text, part| text.starts_with(part)),
        "endswith" => return search.touches_any(wanted, |text, part| text.ends_with(part)),
        "count" => return Ok(Value::from(search.count(text(wanted)?))),
        "find" | "index" => search.first(text(wanted)?),
        _ => search.last(text(wanted)?),
    };
    match found {
        Some(found) => Ok(Value::from(found)),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(wrong("the text does not contain the other")),
    }
}
