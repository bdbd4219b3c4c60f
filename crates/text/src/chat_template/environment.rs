//! The sandbox: a Jinja environment that behaves as transformers' does and can reach nothing.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, machinery};

use super::python::objects::Range;
use super::{ChatTemplateError, RenderLimits, constants, filters, operators, render_budget, type_tests};

pub(super) const TEMPLATE_NAME: &str = "chat";

/// Compiling descends once per operator, so that a file of nothing but minus signs needs a frame for each of them.
const COMPILE_STACK_BYTES_PER_SOURCE_BYTE: usize = 2048;
const COMPILE_STACK_BYTES_MIN: usize = 1 << 20;

/// Compiles a template, on a stack that is deep enough for whatever a file of its size can contain. The memory is
/// only reserved: an ordinary template touches a few pages of it.
pub(super) fn build(source: &str, limits: &RenderLimits) -> Result<Environment<'static>, ChatTemplateError> {
    if cfg!(target_family = "wasm") {
        // No threads there, and an overflow ends the sandbox, not the process.
        return compile(source, limits);
    }
    let stack_bytes = COMPILE_STACK_BYTES_MIN + source.len() * COMPILE_STACK_BYTES_PER_SOURCE_BYTE;
    let failed = |reason: &dyn fmt::Display| ChatTemplateError::Syntax { reason: format!("cannot compile: {reason}") };
    std::thread::scope(|scope| {
        let compiler = std::thread::Builder::new().stack_size(stack_bytes);
        let running = compiler.spawn_scoped(scope, || compile(source, limits)).map_err(|error| failed(&error))?;
        running.join().unwrap_or_else(|_| Err(failed(&"the compiler panicked")))
    })
}

/// No loader is set, so the template cannot include anything.
fn compile(source: &str, limits: &RenderLimits) -> Result<Environment<'static>, ChatTemplateError> {
    let syntax_error = |error: Error| ChatTemplateError::Syntax { reason: error.to_string() };
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(syntax_error)?;
    let mut environment = Environment::new();
    environment.set_syntax(syntax.clone());
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(limits.recursion_max);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_global(render_budget::ALLOWED, limits.built_bytes_max as u64);
    operators::add_to(&mut environment);
    filters::add_to(&mut environment);
    type_tests::add_to(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("range", Range::of);
    let source = without_generation_tags(&with_plain_line_ends(source));
    let parsed = machinery::parse(&source, TEMPLATE_NAME, syntax).map_err(syntax_error)?;
    if !constants::are_small(&parsed) {
        return Err(ChatTemplateError::Syntax { reason: "a constant in it is too long".to_owned() });
    }
    drop(parsed);
    environment.add_template_owned(TEMPLATE_NAME, source).map_err(syntax_error)?;
    Ok(environment)
}

/// What a template said when it refused a conversation.
#[derive(Debug)]
pub(super) struct RaisedByTemplate(pub String);

impl fmt::Display for RaisedByTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RaisedByTemplate {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(RaisedByTemplate(message)))
}

/// Jinja knows one line end.
fn with_plain_line_ends(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// `{% generation %}` marks the assistant's part for training. It is a scope and renders as nothing, as `{% with %}` does.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        // Behind the first two characters: `{%}` opens a tag and does not close it.
        let Some(len) = tag[2..].find("%}").map(|end| end + 4) else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(len);
        let inner = tag[2..len - 2].trim_matches(['-', '+']).trim();
        match inner {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
