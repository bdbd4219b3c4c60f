//! Arguments of functions that are called as in Python: by position or by name.

use minijinja::{Error, ErrorKind, Value};

use super::wrong;

/// Gives each parameter its argument.
pub(in crate::chat_template) fn bind<const N: usize>(
    arguments: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (named, by_position) = match arguments.split_last() {
        Some((last, rest)) if last.is_kwargs() => (Some(last), rest),
        _ => (None, arguments),
    };
    if by_position.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut bound = [const { None }; N];
    bound.iter_mut().zip(by_position).for_each(|(parameter, argument)| *parameter = Some(argument.clone()));
    for name in named.map(Value::try_iter).transpose()?.into_iter().flatten() {
        let place = names.iter().position(|known| Some(*known) == name.as_str());
        let free = place.filter(|at| bound[*at].is_none());
        let free = free.ok_or_else(|| wrong(format!("the argument {name} is given twice or not known")))?;
        bound[free] = named.map(|named| named.get_item(&name)).transpose()?;
    }
    Ok(bound)
}

/// Returns an argument that must be there.
pub(in crate::chat_template) fn required(argument: &Option<Value>) -> Result<&Value, Error> {
    argument.as_ref().ok_or_else(|| Error::from(ErrorKind::MissingArgument))
}

pub(in crate::chat_template) fn text(argument: &Value) -> Result<&str, Error> {
    argument.as_str().ok_or_else(|| wrong(format!("expected a string, got {}", argument.kind())))
}

/// Returns a text that may be left out; `None` stands for that too.
pub(in crate::chat_template) fn optional_text(argument: &Option<Value>) -> Result<Option<&str>, Error> {
    argument.as_ref().filter(|argument| !argument.is_none()).map(text).transpose()
}

/// Returns an integer; truth values are integers in Python.
pub(in crate::chat_template) fn integer(argument: &Value) -> Result<i64, Error> {
    let of_truth = || bool::try_from(argument.clone()).ok().map(i64::from);
    let integer = if argument.is_integer() { argument.as_i64() } else { of_truth() };
    integer.ok_or_else(|| wrong(format!("expected an integer, got {}", argument.kind())))
}

/// Returns an integer that may be left out; `None` stands for that too.
pub(in crate::chat_template) fn optional_integer(argument: &Option<Value>) -> Result<Option<i64>, Error> {
    argument.as_ref().filter(|argument| !argument.is_none()).map(integer).transpose()
}

pub(in crate::chat_template) fn is_true(argument: &Option<Value>) -> bool {
    argument.as_ref().is_some_and(Value::is_true)
}
