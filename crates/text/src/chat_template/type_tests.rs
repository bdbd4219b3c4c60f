//! Jinja's tests of what a value is, where the engine has another opinion or none.

use minijinja::value::ValueKind;
use minijinja::{Environment, Value};

use super::python::objects::Method;
use super::python::{is_dict, is_generator, is_of_type, is_view};

pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_test("callable", is_callable);
    environment.add_test("iterable", is_iterable);
    environment.add_test("mapping", is_dict);
    environment.add_test("sequence", is_sequence);
    // Not Jinja's.
    ["endingwith", "int", "safe", "startingwith"].iter().for_each(|name| environment.remove_test(name));
}

/// Undefined values can be iterated, and have no items; `None` cannot.
fn is_iterable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Iterable)
        || is_dict(value)
}

/// What has a length and can be asked for an item: dictionaries too.
fn is_sequence(value: &Value) -> bool {
    is_iterable(value) && !is_view(value) && !is_generator(value)
}

fn is_callable(value: &Value) -> bool {
    let is_function = ["::BoxedFunction", "::Macro"].iter().any(|name| is_of_type(value, name));
    value.is_undefined() || value.downcast_object_ref::<Method>().is_some() || is_function
}
