//! What a reference points to. Only the schema itself is searched; nothing is ever fetched.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde_json::Value;

use super::draft::Draft;
use super::position::escaped;
use super::uri;

/// Keywords with schemas by name, and with a schema or a list of them.
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
const PLAIN: [&str; 17] = [
    "items",
    "additionalItems",
    "prefixItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "anyOf",
    "allOf",
    "oneOf",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
    "extends",
];

/// A schema inside the document.
#[derive(Clone)]
pub(super) struct Target<'s> {
    /// `#` or `#/...`, the same for every way to write the reference.
    pub pointer: String,
    pub schema: &'s Value,
    pub scope: Scope,
}

impl Target<'_> {
    /// Returns a name that is the same only where the schema means the same: a `$dynamicRef` in it may depend on the way
    /// here.
    pub(super) fn key(&self) -> String {
        match self.scope.dynamic.is_empty() {
            true => self.pointer.clone(),
            false => format!("{} {:?}", self.pointer, self.scope.dynamic),
        }
    }
}

/// What references in a schema are relative to.
#[derive(Clone)]
pub(super) struct Scope {
    pub base: Rc<str>,
    pub draft: Draft,
    /// For each `$dynamicAnchor` that several documents have, the first of them on the way here.
    pub dynamic: Rc<BTreeMap<String, Rc<str>>>,
}

impl Scope {
    fn outside() -> Self {
        Self { base: Rc::from(""), draft: Draft::Draft2020, dynamic: Rc::default() }
    }

    /// Returns the scope inside a schema.
    pub(super) fn within(&self, schema: &Value) -> Self {
        let Value::Object(fields) = schema else { return self.clone() };
        let draft = self.draft.of_schema(fields);
        match draft.id(fields).map(|id| id.trim_end_matches('#')) {
            Some(id) if !id.is_empty() && !id.starts_with('#') => {
                let document = id.split('#').next().unwrap_or_default();
                Self { base: uri::joined(&self.base, document).into(), draft, ..self.clone() }
            }
            _ => Self { draft, ..self.clone() },
        }
    }
}

/// Everything in the document that has a name.
pub(super) struct Resources<'s> {
    root: &'s Value,
    documents: HashMap<Rc<str>, Target<'s>>,
    /// By the document's address and the name in it; `None` if several have the same.
    anchors: HashMap<(Rc<str>, String), Option<Target<'s>>>,
    /// The documents of the schemas that have a `$dynamicAnchor` of this name.
    dynamic: HashMap<String, Vec<Rc<str>>>,
    has_recursive_anchor: bool,
}

impl<'s> Resources<'s> {
    pub(super) fn of(root: &'s Value) -> Self {
        let mut found = Self {
            root,
            documents: HashMap::new(),
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
            has_recursive_anchor: false,
        };
        let whole = Target { pointer: "#".to_owned(), schema: root, scope: found.root_scope() };
        found.documents.insert(Rc::from(""), whole.clone());
        found.documents.insert(whole.scope.base.clone(), whole.clone());
        let mut open = vec![Target { scope: Scope::outside(), ..whole }];
        while let Some(target) = open.pop() {
            found.add(target, &mut open);
        }
        // Where there is one only, the way does not matter.
        found.dynamic.retain(|_, documents| documents.len() > 1);
        found
    }

    pub(super) fn root_scope(&self) -> Scope {
        Scope::outside().within(self.root)
    }

    /// Returns the scope with the dynamic anchors of its document, where none of these names was met before.
    pub(super) fn entered(&self, mut scope: Scope) -> Scope {
        let is_new = |(name, documents): &(&String, &Vec<Rc<str>>)| {
            documents.contains(&scope.base) && !scope.dynamic.contains_key(*name)
        };
        let new: Vec<String> = self.dynamic.iter().filter(is_new).map(|(name, _)| name.clone()).collect();
        if !new.is_empty() {
            let base = scope.base.clone();
            Rc::make_mut(&mut scope.dynamic).extend(new.into_iter().map(|name| (name, base.clone())));
        }
        scope
    }

    /// Returns what the reference of a keyword points to from here, or what is wrong with it.
    pub(super) fn target(&self, keyword: &str, reference: &str, scope: &Scope) -> Result<Target<'s>, &'static str> {
        if keyword == "$recursiveRef" && !self.recursion_is_static() {
            return Err("depends on where the schema is used, which is not supported");
        }
        let mut target = self.resolve(reference, &scope.base)?;
        let name = reference.rsplit('#').next().unwrap_or_default();
        let is_dynamic = keyword == "$dynamicRef" && target.schema.get("$dynamicAnchor").is_some_and(|own| own == name);
        if let Some(first) = scope.dynamic.get(name).filter(|_| is_dynamic) {
            let found = self.anchors.get(&(first.clone(), name.to_owned())).cloned().flatten();
            target = found.ok_or("does not exist in the schema")?;
        }
        target.scope.dynamic = scope.dynamic.clone();
        Ok(target)
    }

    /// Returns what a reference points to, or what is wrong with it.
    fn resolve(&self, reference: &str, base: &str) -> Result<Target<'s>, &'static str> {
        const ELSEWHERE: &str = "refers to another document; references are only followed within the schema";
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let document = self.documents.get(uri::joined(base, document).as_str()).ok_or(ELSEWHERE)?;
        let fragment = percent_decoded(fragment).ok_or("is not properly escaped")?;
        let found = match fragment.strip_prefix('/') {
            _ if fragment.is_empty() => Some(document.clone()),
            Some(path) => follow(document, path),
            None => self.anchors.get(&(document.scope.base.clone(), fragment)).cloned().flatten(),
        };
        found.ok_or("does not exist in the schema")
    }

    /// Returns whether `$recursiveRef` means the same as a `$ref`.
    fn recursion_is_static(&self) -> bool {
        !self.has_recursive_anchor || self.documents.len() <= 2
    }

    fn add(&mut self, target: Target<'s>, open: &mut Vec<Target<'s>>) {
        let Value::Object(fields) = target.schema else { return };
        let scope = target.scope.within(target.schema);
        let here = Target { scope: scope.clone(), ..target };
        if let Some(id) = scope.draft.id(fields) {
            match id.split_once('#') {
                Some(("", name)) if !name.is_empty() => self.add_anchor(name, &here),
                _ => drop(self.documents.entry(scope.base.clone()).or_insert_with(|| here.clone())),
            }
        }
        for keyword in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = fields.get(keyword).and_then(Value::as_str) {
                self.add_anchor(name, &here);
                if keyword == "$dynamicAnchor" {
                    self.dynamic.entry(name.to_owned()).or_default().push(scope.base.clone());
                }
            }
        }
        self.has_recursive_anchor |= fields.get("$recursiveAnchor") == Some(&Value::Bool(true));
        let below = |pointer: String, schema: &'s Value| Target { pointer, schema, scope: scope.clone() };
        for (keyword, value) in fields {
            let pointer = format!("{}/{}", here.pointer, escaped(keyword));
            match value {
                Value::Object(schemas) if NAMED.contains(&keyword.as_str()) => {
                    let each = schemas.iter().map(|(name, schema)| (escaped(name), schema));
                    open.extend(each.map(|(name, schema)| below(format!("{pointer}/{name}"), schema)));
                }
                Value::Array(schemas) if PLAIN.contains(&keyword.as_str()) => {
                    let each = schemas.iter().enumerate();
                    open.extend(each.map(|(index, schema)| below(format!("{pointer}/{index}"), schema)));
                }
                Value::Object(_) if PLAIN.contains(&keyword.as_str()) => open.push(below(pointer, value)),
                _ => {}
            }
        }
    }

    fn add_anchor(&mut self, name: &str, target: &Target<'s>) {
        let key = (target.scope.base.clone(), name.to_owned());
        self.anchors
            .entry(key)
            .and_modify(|known| {
                if known.as_ref().is_some_and(|known| known.pointer != target.pointer) {
                    *known = None;
                }
            })
            .or_insert_with(|| Some(target.clone()));
    }
}

fn follow<'s>(document: &Target<'s>, path: &str) -> Option<Target<'s>> {
    let mut target = Target { pointer: format!("{}/{path}", document.pointer), ..document.clone() };
    for step in path.split('/') {
        let key = step.replace("~1", "/").replace("~0", "~");
        target.schema = match target.schema {
            Value::Object(fields) => fields.get(&key)?,
            Value::Array(items) => items.get(key.parse::<usize>().ok()?)?,
            _ => return None,
        };
        target.scope = target.scope.within(target.schema);
    }
    Some(target)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?].map(char::from);
            let [high, low] = [digits[0].to_digit(16)?, digits[1].to_digit(16)?];
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, reference: &str, base: &str, expected: Result<&str, &str>) {
        let found = Resources::of(schema).resolve(reference, base).map(|target| target.pointer);
        match expected {
            Ok(pointer) => assert_eq!(found.as_deref(), Ok(pointer), "{reference}"),
            Err(part) => assert!(found.as_ref().is_err_and(|problem| problem.contains(part)), "{reference}: {found:?}"),
        }
    }

    #[test]
    fn references_are_found_by_pointer_anchor_and_address() {
        let schema = json!({
            "$id": "http://example.com/root.json",
            "$defs": {
                "a": { "$id": "nested/b.json", "$anchor": "here", "$defs": { "c d": {} } },
                "twice": { "$anchor": "twice", "items": { "$anchor": "twice" } },
                "e~f/g": {}
            },
            "unknown": { "$id": "not/an/id.json" },
            "enum": [{ "$id": "neither.json" }]
        });
        let base = "http://example.com/root.json";
        check(&schema, "#", base, Ok("#"));
        check(&schema, "root.json#/$defs/a", base, Ok("#/$defs/a"));
        check(&schema, "nested/b.json", base, Ok("#/$defs/a"));
        check(&schema, "b.json#/$defs/c%20d", "http://example.com/nested/b.json", Ok("#/$defs/a/$defs/c d"));
        check(&schema, "nested/b.json#here", base, Ok("#/$defs/a"));
        check(&schema, "#/$defs/e~0f~1g", base, Ok("#/$defs/e~0f~1g"));
        check(&schema, "#here", base, Err("does not exist"));
        check(&schema, "#twice", base, Err("does not exist"));
        check(&schema, "not/an/id.json", base, Err("another document"));
        check(&schema, "neither.json", base, Err("another document"));
        check(&schema, "#/$defs/%zz", base, Err("not properly escaped"));
        check(&schema, "#/$defs/none", base, Err("does not exist"));
    }

    #[test]
    fn old_drafts_name_schemas_their_own_way() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://example.com/old#",
            "definitions": { "a": { "id": "#name", "properties": { "id": { "type": "string" } } } }
        });
        check(&schema, "#name", "http://example.com/old", Ok("#/definitions/a"));
        check(&schema, "old#/definitions/a", "http://example.com/old", Ok("#/definitions/a"));
        check(&schema, "http://example.com/old", "", Ok("#"));
    }
}
